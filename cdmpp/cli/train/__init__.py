"""`cdmpp train`, and the trainings behind the shipped model: `pretrain` and `train-code`."""
