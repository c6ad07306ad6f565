"""Predicts the speed of training on a cluster that is not available.

The training code itself runs, with a communicator that records the calls; the same schedules of
sends and receives are then executed by a model of the cluster's links, event by event.
"""
