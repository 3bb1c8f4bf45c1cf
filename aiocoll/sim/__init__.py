"""Many ranks in one process, in virtual time, from one seed: the real endpoint and algorithms on real values."""
