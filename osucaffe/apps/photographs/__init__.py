"""Classifiers of photographs: databases, nets, training, labels, and reports."""
