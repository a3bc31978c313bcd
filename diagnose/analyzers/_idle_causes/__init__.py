"""What the parts of a stall are: host threads as timelines, free intervals of a GPU, causes."""
