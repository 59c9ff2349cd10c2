"""What is remembered about the work: sessions, agents, tasks, transcripts, deliveries, usage."""
