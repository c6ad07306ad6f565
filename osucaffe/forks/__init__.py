"""What forks of Caffe brought, a folder for each family: its layers and what only they use.

The rest of osucaffe imports nothing of it: its `entry_points.txt` lists the layer types,
and a net that names one imports its module.
"""
