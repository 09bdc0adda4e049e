"""From images to descriptors: lists images, decodes them, runs a network, and imports its output; trains small networks too."""
