"""For who studies communication: published designs of training, profiles, and predictions.

Nothing of it is imported before an option or a command names it. A prediction takes the plan of an
iteration that training carries out, and lets a model of a cluster's links carry out its messages.
"""
