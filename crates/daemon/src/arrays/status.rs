//! How arrays stand, for people: the answer to `array status`. The names of the fields are a contract.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use surgetank_policy::budget::BudgetUse;
use surgetank_rental::Slot;
use surgetank_rental::array::{MemberStatus, Part, Stage};

use super::manager::Manager;
use crate::clock::unix_ms;

const GIB: f64 = (1_u64 << 30) as f64;

/// All arrays.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ArraysReport {
    /// The arrays, by name.
    pub arrays: Vec<ArrayStatus>,
}

/// One array.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArrayStatus {
    /// Its name.
    pub name: String,
    /// Its name on its members; `null`: there is no such array.
    pub id: Option<String>,
    /// `absent`, `creating`, `made`, `served`, `deleting` or `refused`.
    pub state: String,
    /// The device that is configured over it.
    pub device: Option<String>,
    /// From whom its volumes are rented.
    pub provider: String,
    /// Their type.
    pub volume_type: String,
    /// Members.
    pub members: u32,
    /// Size of a member as configured.
    pub member_gib: f64,
    /// Size of the array; `null`: unknown while no device serves it.
    pub size_gib: Option<f64>,
    /// What of it was ever written, which is what a replacement of all members copies; `null` while no device serves it.
    pub written_gib: Option<f64>,
    /// `persistent` or `ephemeral`.
    #[serde(rename = "use")]
    pub usage: String,
    /// When members are replaced by themselves.
    pub rotate: String,
    /// How fast a joining member is copied to; `null`: as fast as the volumes are.
    pub copy_mib_s: Option<f64>,
    /// Its volumes, by slot.
    pub volumes: Vec<VolumeStatus>,
    /// Slots whose member is being or to be replaced.
    pub replacing: Vec<u32>,
    /// Members replaced since the daemon started.
    pub replaced: u64,
    /// What keeps it from going on.
    pub reason: Option<String>,
    /// What extra volumes cost in the last hour and day, and may; absent: it is not limited, or no device serves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<[BudgetUse; 2]>,
}

/// A volume of an array.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// Its slot.
    pub slot: Option<u32>,
    /// The provider's name; `null`: not known yet.
    pub volume: Option<String>,
    /// `coming`, `active`, `joining`, `missing`, `held` or `leaving`.
    pub part: String,
    /// Its size.
    pub size_gib: f64,
    /// Since its creation was asked for.
    pub age_s: f64,
    /// Of a joining member: what of its slot's data it has, from 0 to 1.
    pub copied_share: Option<f64>,
    /// Of a joining member: what was copied to it since the daemon started.
    pub copied_gib: Option<f64>,
    /// What was read from it since it came into use.
    pub read_gib: Option<f64>,
    /// What was written to it since.
    pub written_gib: Option<f64>,
    /// Reads and writes since.
    pub ios: Option<u64>,
    /// The share of its burst credits that is left, of the emptiest bucket; `null`: it has none.
    pub credits_share: Option<f64>,
    /// When they end at the rate of late; `null`: never, or it is not known.
    #[serde(default)]
    pub credits_end_s: Option<f64>,
    /// How much longer it is kept.
    pub held_s: Option<f64>,
}

impl ArrayStatus {
    /// One that cannot be looked after.
    #[must_use]
    pub fn refused(name: &str, why: String) -> Self {
        Self {
            name: name.to_owned(),
            id: None,
            state: "refused".to_owned(),
            device: None,
            provider: String::new(),
            volume_type: String::new(),
            members: 0,
            member_gib: 0.0,
            size_gib: None,
            written_gib: None,
            usage: String::new(),
            rotate: String::new(),
            copy_mib_s: None,
            volumes: Vec::new(),
            replacing: Vec::new(),
            replaced: 0,
            reason: Some(why),
            budget: None,
        }
    }
}

/// How one stands.
pub(super) fn of(manager: &Manager) -> ArrayStatus {
    let (life, config) = (manager.life.status(), &manager.config);
    let served = manager.handle.as_ref().filter(|_| life.is_served).map(|handle| handle.status());
    let state = match life.stage {
        None => "absent",
        Some(Stage::Creating) => "creating",
        Some(Stage::Made) if life.is_served => "served",
        Some(Stage::Made) => "made",
        Some(Stage::Deleting) => "deleting",
    };
    let places: BTreeMap<_, _> = manager.targets.iter().map(|(target, place)| (*place, *target)).collect();
    let now = unix_ms();
    let rotation = manager.rotation().filter(|_| life.is_served);
    let of_slot = |volume: &MemberStatus| {
        let slot = volume.slot.filter(|_| volume.part == Part::Active)?;
        rotation.as_ref()?.slots.get(slot as usize)
    };
    let volume = |volume: &MemberStatus| {
        let target = places.get(&volume.place);
        let engine = served.as_ref().map(|served| &served.engine);
        let join = engine.and_then(|engine| {
            let joins = engine.slots.iter().filter_map(|slot| slot.join.as_ref());
            joins.into_iter().find(|join| Some(&join.target) == target)
        });
        let counted = served.as_ref().and_then(|served| {
            let member = served.members.iter().find(|member| Some(&member.target) == target)?;
            Some(member.served)
        });
        VolumeStatus {
            slot: volume.slot,
            volume: volume.volume.as_ref().map(|id| id.0.clone()),
            part: part(volume.part).to_owned(),
            size_gib: volume.size.as_gib(),
            age_s: now.saturating_sub(volume.started_unix_ms) as f64 / 1e3,
            copied_share: join.map(|join| join.regions_synced as f64 / join.regions.max(1) as f64),
            copied_gib: join.map(|join| join.copied_bytes as f64 / GIB),
            read_gib: counted.map(|served| served.read_bytes as f64 / GIB),
            written_gib: counted.map(|served| served.written_bytes as f64 / GIB),
            ios: counted.map(|served| served.reads + served.writes),
            credits_share: manager.credits_share(volume.place).or_else(|| of_slot(volume)?.credits_ratio),
            credits_end_s: of_slot(volume).and_then(|slot| slot.empty_in_s),
            held_s: volume.held_until_unix_ms.map(|until| until.saturating_sub(now) as f64 / 1e3),
        }
    };
    let region = f64::from(manager.region);
    ArrayStatus {
        name: manager.name.clone(),
        id: manager.life.record().map(|record| record.facts.array.clone()),
        state: state.to_owned(),
        device: manager.device.clone(),
        provider: config.provider.to_owned(),
        volume_type: config.volume_type.clone(),
        members: config.members,
        member_gib: config.member_size.as_gib(),
        size_gib: served.as_ref().map(|served| served.engine.size as f64 / GIB),
        written_gib: served.as_ref().map(|served| served.engine.regions_written as f64 * region / GIB),
        usage: config.usage.name().to_owned(),
        rotate: config.rotate.to_string(),
        copy_mib_s: config.copy_rate.map(|rate| rate.as_mib_s()),
        volumes: life.volumes.iter().map(volume).collect(),
        replacing: life.wanted,
        replaced: manager.replaced,
        budget: manager.budget().filter(|_| life.is_served),
        reason: life.trouble.or_else(|| rotation.as_ref()?.waiting.clone()),
    }
}

impl Manager {
    fn credits_share(&self, place: Slot) -> Option<f64> {
        let balances = self.meters.get(&place)?.meter.balances(self.now());
        let shares = balances
            .iter()
            .zip(&self.config.credits)
            .map(|((_, balance), credits)| *balance as f64 / credits.bucket.max(1) as f64);
        shares.min_by(f64::total_cmp)
    }
}

const fn part(part: Part) -> &'static str {
    match part {
        Part::Coming => "coming",
        Part::Active => "active",
        Part::Joining => "joining",
        Part::Missing => "missing",
        Part::Held => "held",
        Part::Leaving => "leaving",
    }
}
