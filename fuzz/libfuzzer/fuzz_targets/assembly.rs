//! libFuzzer's entry to the target `assembly`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| surgetank_fuzz::run("assembly", data));
