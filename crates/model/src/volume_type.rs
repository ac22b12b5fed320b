//! Volume types: what a provider rents out, with its limits, credits and price.
