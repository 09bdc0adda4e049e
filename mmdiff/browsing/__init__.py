"""The page of a store on this machine: what is in it, one row after the other, and labelling."""
