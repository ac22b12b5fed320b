//! Runs that long searches found; each shows what one fix was for.

use surgetank_sim::Family;

/// Family and seed.
pub const RUNS: [(Family, u64); 52] = [
    // New records had the sequences of old ones that the superblock called durable.
    (Family::Stops, 21_196),
    // A recovery fails three times for want of a part of the log, and requests do not wait for all of them.
    (Family::Losses, 23_867),
    // A slow flush of the backing volume makes a recovery fail long after the outage that is its cause.
    (Family::ProviderOutages, 20_237),
    // What a power cut tore after it was lost never comes back, and the controller holds its volume.
    (Family::ProviderOutages, 21_196),
    // A flush failed that the caching volume forgot, and nobody was left who knew.
    (Family::CacheFlushes, 23_541),
    // A record that a crash cut short hid those before it that could not be read.
    (Family::Losses, 32_554),
    (Family::Losses, 6602),
    // A flush failed while the log was being read for the drain, and that counted as forgotten.
    (Family::Losses, 38_939),
    // A flush failed after the cache, and what was durable in segments that were being freed counted as lost.
    (Family::Losses, 31_009),
    // What the log holds was read although a record that is missing held newer data.
    (Family::Losses, 41_615),
    // A record in flight never arrived, and the one behind it, which was acknowledged, cannot be read.
    (Family::Owners, 33_167),
    // The record before the one that another repeats cannot be read.
    (Family::Owners, 31_460),
    (Family::Owners, 32_520),
    // Flushes were asked for before the first one was answered that told of a loss.
    (Family::Stops, 35_825),
    // Faults ended while a flush was failing for which a recovery waited.
    (Family::CacheFlushes, 60_993),
    // What was torn above the durable mark, and never was acknowledged, stayed lost after the volume was back.
    (Family::Outages, 5918),
    // A block of a record whose write had failed could be read again, and the old bytes in it counted as damage.
    (Family::BadRanges, 2462),
    // What a crash had cut short was overwritten, and counted as missing once its segment had an index.
    (Family::Outages, 7_003_220),
    // A second crash undid a write over a range whose loss had been accepted.
    (Family::Losses, 7_005_275),
    // A copy said of records long gone that they were durable, after their sequences had been used again.
    (Family::Overwrites, 8_004_695),
    // A block that never arrived whole was taken for newer than what was missing.
    (Family::Latent, 8_012_919),
    // What cannot be read was taken for newer than a record of the next segment.
    (Family::Latent, 8_012_624),
    // The write of the table failed that was freeing segments, and what was durable of them counted as lost.
    (Family::Losses, 8_035_713),
    // A flush failed before the log was read back, and the next one was believed.
    (Family::CacheFlushes, 8_013_120),
    // The overwrites that were to heal everything failed.
    (Family::Owners, 8_008_357),
    (Family::Owners, 8_011_391),
    // A record was forced to the media far behind others that were not, and nobody looked for it where it could not be read.
    (Family::Losses, 20_017_912),
    // A record that never arrived counted because another segment repeated it, and was gone when that was freed.
    (Family::Overwrites, 40_009_154),
    // A failed flush covered what then counted as durable.
    (Family::CacheFlushes, 40_008_165),
    (Family::CacheFlushes, 40_000_558),
    // The middle of a segment that was never used could not be read, and everything was discarded.
    (Family::Latent, 40_007_016),
    // A copy in flight kept an orderly stop from calling the log durable.
    (Family::Stops, 40_012_226),
    // Nothing had room between a record and one whose write had failed, and a record was taken to hide there.
    (Family::Latent, 50_017_861),
    // A flush told of a loss, and what had been overwritten within it counted as durable after the next.
    (Family::Outages, 70_001_112),
    // A record counted that the superblock called failed; an older one, which could not be read, was discarded.
    (Family::Latent, 80_020_969),
    // A flush of the caching volume failed, and the next one made what it had dropped count as durable.
    (Family::CacheFlushes, 90_022_943),
    (Family::CacheFlushes, 90_036_424),
    // A change on its way when a drain was to be finished counted twice.
    (Family::Outages, 90_032_300),
    // A record was taken to hide behind the first one of a segment, whose write had failed.
    (Family::BadRanges, 90_004_319),
    // A record that had failed repeats one that a power cut tore, and the device waited for that to come back.
    (Family::Outages, 90_008_565),
    // One superblock was torn, the other one could not be read for once, and what they said of failed records was forgotten.
    (Family::FailedAppends, 90_004_810),
    // What cannot be read between two records was taken for newer than the second one.
    (Family::Latent, 90_029_719),
    // What could not be read, and had never arrived whole, counted as durable, and as damaged once it could be read.
    (Family::BadRanges, 110_017_089),
    // Copies were in flight when the machine stopped.
    (Family::Growth, 110_009_689),
    // A volume left the machine between its release by the engine and its detachment, and the next one counted as gone.
    (Family::Mapped, 2_020_980),
    // A volume was here again shortly before patience with it ended, and nobody had looked.
    (Family::Mapped, 2_031_382),
    // Nothing failed here: these show at once what longer searches find late.
    (Family::Stops, 18_810),
    (Family::EveryEvent, 46_900),
    (Family::TableCopies, 1196),
    (Family::Losses, 1190),
    (Family::Losses, 534),
    (Family::Mapped, 36),
];
