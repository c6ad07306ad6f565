"""The commands about nets and model files: new, models, summary, draw, layers, net_spec,
upgrade, export, snapshot."""
