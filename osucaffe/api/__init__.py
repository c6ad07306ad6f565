"""`import osucaffe as oc`: nets, solvers, runs and models as Python users know them. Each is a
few lines on the engine, which does the work."""
