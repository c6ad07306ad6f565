"""A folder for the end of `sys.path`: what `import caffe` finds there is pycaffe's interface.

Modules of Python layers begin with that import. A Caffe that is installed goes before it.
"""
