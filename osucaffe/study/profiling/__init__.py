"""The profile of what travels: `train --comm_profile`, and `osucaffe profile`."""
