"""Random settings of solvers and of data layers, beside what NumPy makes of them."""
