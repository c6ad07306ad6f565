"""Owns the tests of `import osucaffe as oc`."""
