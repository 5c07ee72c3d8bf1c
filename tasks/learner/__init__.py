"""The policy-gradient update: trajectories and advantages in, a checkpoint and its proof out.

`driver.handle.LearnerHandle` is the driver's side; importing it imports neither torch nor transformers.
"""
