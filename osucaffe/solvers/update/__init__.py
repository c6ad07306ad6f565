"""The update of the parameters: rules, learning rates, loss scaling."""
