"""What lets a job's workers come and go while it trains: generations, borders, the state that is handed over."""
