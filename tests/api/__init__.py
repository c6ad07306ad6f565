"""The tests of `import osucaffe as oc`."""
