"""The devices we know, what is read of the machine at hand, occupancy, and the device vector."""
