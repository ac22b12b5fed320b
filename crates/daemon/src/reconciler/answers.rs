//! What a device says of itself: its status, and everything for a report.

use std::time::Duration;

use surgetank_cache::EngineStage;
use surgetank_model::Instant;

use surgetank_rental::stripe;

use super::room::Room;
use super::{Reconciler, Recovery, boost_log};
use crate::lifecycle::Lifecycle;
use crate::shard::Command;
use crate::status::{CachingStatus, DevicePhase, DeviceReport, DeviceStatus, LOST_RANGES_LISTED, LostRange};
use crate::switching::Switching;

impl Reconciler {
    pub(super) fn status(&mut self, now: Instant) -> DeviceStatus {
        match self.parts.shard.ask(|answer| Command::Sample { answer }) {
            Ok(sample) => self.last = Some(sample),
            Err(gone) => self.reason = Some(format!("{gone} and its requests are not answered: restart the daemon")),
        }
        let totals = self.parts.accounts.totals(now);
        let engine = self.last.as_ref().map(|sample| &sample.status);
        let lost_bytes = self.lost_bytes();
        let lost_range_count = engine.map_or(0, |status| status.lost_ranges as u64);
        let lost_ranges = if lost_bytes > 0 { self.lost_ranges() } else { Vec::new() };
        let gib = |bytes: u64| bytes as f64 / surgetank_model::units::GIB as f64;
        let (controller, lifecycle, (why, growth)) = match &self.parts.boosting {
            Some((controller, lifecycle)) => {
                (Some(controller.status()), Some(lifecycle), (controller.why(), controller.why_grown()))
            }
            None => (None, None, (None, None)),
        };
        let caching = lifecycle.and_then(|lifecycle| lifecycle.rental().record()).map(|rental| CachingStatus {
            volume: rental.volume.as_ref().map_or_else(String::new, |id| id.0.clone()),
            volumes: match &rental.volume {
                Some(id) => stripe::members(id).len() as u32,
                None => lifecycle.map_or(1, Lifecycle::volumes),
            },
            size_gib: rental.size.as_gib(),
            dirty_gib: engine.map_or(0.0, |status| gib(status.dirty_bytes)),
            high_water_gib: engine.map_or(0.0, |status| gib(status.high_water_bytes)),
            why: why.map(str::to_owned),
            growth: growth.map(str::to_owned),
        });
        DeviceStatus {
            name: self.parts.name.clone(),
            export: self.parts.export.to_owned(),
            address: self.parts.shared.address(),
            map: self.parts.switching.as_ref().map(|switching| switching.map().to_owned()),
            size_gib: self.last.as_ref().map_or(0.0, |sample| gib(sample.size_bytes)),
            phase: self.phase(controller.as_ref().map(|status| status.phase)),
            reason: self.reason(now, lost_bytes, controller.as_ref()),
            retry_s: self.retry_in(now, controller.as_ref()).map(|left| left.as_secs_f64()),
            announced_s: controller.as_ref().and_then(|status| status.announced_in).map(|left| left.0.as_secs_f64()),
            throughput_mib_s: self.parts.accounts.throughput() / surgetank_model::units::MIB as f64,
            utilization: controller.as_ref().map_or(0.0, |status| status.utilization),
            caching,
            read_cache: None,
            boosts: controller.as_ref().map_or(0, |status| status.boosts),
            next_cache_gib: controller.as_ref().map(|status| status.next_size.as_gib()),
            cost_agbs: totals.agbs,
            cost_usd: totals.usd,
            lost_ranges,
            lost_range_count,
            lost_bytes,
        }
    }

    /// When what does not work now is tried again, if nobody asks for it before.
    fn retry_in(&self, now: Instant, controller: Option<&surgetank_policy::Status>) -> Option<Duration> {
        let recovery = match self.recovery {
            Recovery::Waiting(_, at) => Some(at.since(now)),
            _ => None,
        };
        let lifecycle = self.parts.boosting.as_ref().and_then(|(_, lifecycle)| lifecycle.rental().tried_in(now));
        let controller = controller.and_then(|status| status.retry_in).map(|span| span.0);
        recovery.or(lifecycle).or(controller)
    }

    /// The first of the ranges that are lost.
    fn lost_ranges(&self) -> Vec<LostRange> {
        let ranges = self.parts.shard.ask(|answer| Command::LostRanges { most: LOST_RANGES_LISTED, answer });
        // A thread that has ended says so in the reason.
        let ranges = ranges.unwrap_or_default().into_iter();
        ranges.map(|(offset_bytes, length_bytes)| LostRange { offset_bytes, length_bytes }).collect()
    }

    fn phase(&self, controller: Option<surgetank_policy::Phase>) -> DevicePhase {
        let stage = self.last.as_ref().map(|sample| sample.status.stage);
        match stage {
            Some(EngineStage::Lost | EngineStage::Failing) => DevicePhase::Degraded,
            _ if self.lost_bytes() > 0 || self.kept().is_some() => DevicePhase::Degraded,
            _ if self.reason.is_some() || self.parts.shared.trouble().is_some() => DevicePhase::Degraded,
            _ if self.recovery != Recovery::None => DevicePhase::Attaching,
            _ => controller.map_or(DevicePhase::Idle, DevicePhase::from),
        }
    }

    fn reason(&self, now: Instant, lost_bytes: u64, controller: Option<&surgetank_policy::Status>) -> Option<String> {
        let dirty = self.last.as_ref().map_or(0, |sample| sample.status.dirty_bytes);
        let bytes = if lost_bytes > 0 { lost_bytes } else { dirty };
        let trouble = self.parts.boosting.as_ref().and_then(|(_, lifecycle)| lifecycle.rental().trouble(now, bytes));
        if let Some(reason) = trouble.or_else(|| self.kept()) {
            return Some(reason);
        }
        if lost_bytes > 0 {
            return Some(format!(
                "{lost_bytes} bytes were lost with the caching volume and answer EIO until they are overwritten; \
                 `surgetank detach {} --accept-loss` discards them",
                self.parts.name
            ));
        }
        if let Some(reason) = self.reason.clone().or_else(|| self.parts.shared.trouble()) {
            return Some(reason);
        }
        if let Some(reason) = self.parts.owner_thread.trouble() {
            return Some(reason);
        }
        if self.recovery != Recovery::None {
            return Some(format!("{}; requests wait", boost_log::reading_back(self.parts.last_run)));
        }
        let switching = self.parts.switching.as_ref().and_then(Switching::trouble);
        let waits = self.room.as_ref().and_then(Room::waits);
        let unmapped =
            switching.map(|why| format!("the kernel does not map the device as it should: {why}; it is tried again"));
        unmapped.or(waits).or_else(|| controller.and_then(|status| status.backing_off.clone()))
    }

    pub(super) fn report(&mut self, now: Instant) -> DeviceReport {
        let (boosts, activity, account) = self.parts.accounts.report();
        let cost = account.total(now);
        DeviceReport {
            boosts,
            activity,
            rentals: account.rentals().to_vec(),
            cost_agbs: cost.agbs,
            cost_usd: cost.usd,
            now_s: now.as_seconds(),
        }
    }
}
