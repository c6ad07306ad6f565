"""Random inputs, compared with what computes the same independently."""
