"""`mmdiff doctor`: checks of the software, the machine and the disk."""
