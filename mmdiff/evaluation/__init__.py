"""`mmdiff evaluate`: accuracy of scores with intervals, worst classes, margins."""
