"""What a log means after a crash: scanning, closers and repair plans.  Pure: no files, clock, randomness or asyncio."""
