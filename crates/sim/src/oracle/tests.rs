//! Tests of the oracle.

use super::*;

const SECTORS: u32 = 16;

fn oracle() -> Oracle {
    Oracle::new(1, SECTORS, false)
}

fn bytes(oracle: &Oracle, version: Version, sector: u32) -> Vec<u8> {
    let mut bytes = vec![0; SECTOR];
    oracle.fill(version, sector, &mut bytes);
    bytes
}

fn write(oracle: &mut Oracle, sector: u32) -> Version {
    let version = oracle.begin_write(sector, 1, false);
    oracle.end_write(version, true, false);
    version
}

fn holds(oracle: &mut Oracle, version: Version, sector: u32) -> bool {
    let bytes = bytes(oracle, version, sector);
    oracle.check_now(sector, &bytes).is_ok()
}

#[test]
fn the_newest_is_read_and_nothing_else() {
    let mut oracle = oracle();
    let (old, new) = (write(&mut oracle, 3), write(&mut oracle, 3));
    assert!(!holds(&mut oracle, old, 3));
    assert!(holds(&mut oracle, new, 3));
    assert!(oracle.check_now(3, &[0; SECTOR]).is_err(), "stale zeroes");
    let elsewhere = bytes(&oracle, new, 4);
    assert!(oracle.check_now(3, &elsewhere).is_err(), "another sector's data");
    let mut torn = bytes(&oracle, new, 3);
    torn[256..].fill(0);
    assert!(oracle.check_now(3, &torn).is_err(), "a torn sector");
}

#[test]
fn writes_in_flight_together_are_open_until_a_read_tells() {
    let mut oracle = oracle();
    let (one, two) = (oracle.begin_write(0, 2, false), oracle.begin_write(0, 2, false));
    oracle.end_write(two, true, false);
    oracle.end_write(one, true, false);
    assert!(holds(&mut oracle, two, 0));
    assert!(!holds(&mut oracle, one, 0), "re-reads are stable");
    assert!(holds(&mut oracle, one, 1), "another sector may end otherwise");
    let flush = oracle.begin_flush();
    oracle.end_flush(flush).expect("nothing is lost");
    oracle.power_cut();
    assert!(!holds(&mut oracle, one, 0), "what lost does not come back after a flush");
}

#[test]
fn a_power_cut_keeps_what_was_flushed_or_anything_newer() {
    let mut oracle = oracle();
    let old = write(&mut oracle, 5);
    let flushed = write(&mut oracle, 5);
    let flush = oracle.begin_flush();
    let newer = write(&mut oracle, 5);
    oracle.end_flush(flush).expect("nothing is lost");
    oracle.power_cut();
    assert!(!holds(&mut oracle, old, 5), "older than the flushed one");
    assert!(holds(&mut oracle, flushed, 5), "the flush does not cover a write acknowledged after its submission");
    assert!(!holds(&mut oracle, newer, 5), "stable after the first read");
    oracle.power_cut();
    assert!(!holds(&mut oracle, newer, 5) && holds(&mut oracle, flushed, 5));
}

#[test]
fn unflushed_data_may_fall_back_after_a_power_cut_but_not_after_a_daemon_crash() {
    let mut oracle = oracle();
    let old = write(&mut oracle, 1);
    let new = write(&mut oracle, 1);
    oracle.daemon_crash();
    assert!(!holds(&mut oracle, old, 1) && holds(&mut oracle, new, 1));
    oracle.power_cut();
    assert!(holds(&mut oracle, old, 1), "a read does not make it durable");
}

#[test]
fn an_unanswered_write_may_have_happened_or_not() {
    for happened in [false, true] {
        let mut oracle = oracle();
        let old = write(&mut oracle, 7);
        let new = oracle.begin_write(7, 1, false);
        oracle.daemon_crash();
        let (seen, other) = if happened { (new, old) } else { (old, new) };
        assert!(holds(&mut oracle, seen, 7) && !holds(&mut oracle, other, 7));
    }
}

#[test]
fn forced_unit_access_is_durable_and_alone() {
    let mut oracle = oracle();
    let plain = write(&mut oracle, 8);
    let old = write(&mut oracle, 9);
    let forced = oracle.begin_write(9, 1, false);
    oracle.end_write(forced, true, true);
    oracle.power_cut();
    assert!(!holds(&mut oracle, old, 9) && holds(&mut oracle, forced, 9));
    assert!(oracle.check_now(8, &[0; SECTOR]).is_ok() && !holds(&mut oracle, plain, 8));
}

#[test]
fn discards_read_as_zeroes() {
    let mut oracle = oracle();
    let data = write(&mut oracle, 2);
    let discard = oracle.begin_write(0, 8, true);
    oracle.end_write(discard, true, false);
    assert!(oracle.check_now(2, &[0; SECTOR]).is_ok() && !holds(&mut oracle, data, 2));
    oracle.power_cut();
    assert!(holds(&mut oracle, data, 2), "an unflushed discard may be undone");
}

#[test]
fn a_read_in_flight_may_see_before_or_after() {
    let mut oracle = oracle();
    let old = write(&mut oracle, 4);
    let read = oracle.begin_read();
    let new = write(&mut oracle, 4);
    let before = bytes(&oracle, old, 4);
    assert!(oracle.end_read(read, 4, &before).is_ok());
    assert!(holds(&mut oracle, new, 4) && !holds(&mut oracle, old, 4));
}

#[test]
fn lost_sectors_answer_only_after_they_are_overwritten() {
    let mut oracle = oracle();
    write(&mut oracle, 6);
    oracle.begin_loss();
    oracle.lose(6, 1);
    assert!(oracle.is_lost(0, 16) && !oracle.is_lost(0, 6));
    assert!(oracle.check_now(6, &[0; SECTOR]).is_err(), "stale data of a lost sector");
    let healed = write(&mut oracle, 6);
    assert!(holds(&mut oracle, healed, 6));
    oracle.power_cut();
    assert!(oracle.lose_again(6, 1).is_err(), "an acknowledged overwriting is recorded");
}
