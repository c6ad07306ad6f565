"""Predicts what training would take on a cluster that is not at hand.

The code that trains runs, with a communicator that notes what is asked of it; the same schedules of
sends and receives are then carried out by a model of the cluster's links, event by event.
"""
