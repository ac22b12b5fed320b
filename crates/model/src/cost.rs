//! Cost: adjusted GB-seconds (AGBs) and money.
