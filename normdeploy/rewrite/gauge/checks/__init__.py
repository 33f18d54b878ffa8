"""Each changed operator checked alone, on made-up inputs."""
