//! What `pool status` says of mounts and their targets.

use serde::Serialize;
use surgetank_model::text::line;
use surgetank_pool::manager;
use surgetank_report::Table;
use surgetank_report::number::duration;

use super::{GIB, size};

/// What a mount has in the pool, and how its target is.
#[derive(Serialize)]
pub struct MountStatus {
    name: String,
    target: String,
    /// Changes that the target has not seen.
    changes_waiting: u64,
    /// What its chunks take of the pool, with all copies.
    memory_gib: f64,
    ssd_gib: f64,
    /// Why it sees nothing at present; `None`: it does, or nothing waits.
    standstill: Option<Standstill>,
}

#[derive(Serialize)]
struct Standstill {
    why: String,
    remedy: String,
    seconds: u64,
}

impl MountStatus {
    pub fn of(status: &manager::MountStatus) -> Self {
        let manager::MountStatus { name, target, journal, memory, ssd, standstill } = status.clone();
        let standstill =
            standstill.map(|manager::Standstill { why, remedy, seconds }| Standstill { why, remedy, seconds });
        let (memory_gib, ssd_gib) = (memory as f64 / GIB, ssd as f64 / GIB);
        Self { name, target, changes_waiting: journal, memory_gib, ssd_gib, standstill }
    }

    /// The rows that people get.
    pub fn table(all: &[Self]) -> String {
        if all.is_empty() {
            return String::new();
        }
        let mut table = Table::new(["mount", "target", "memory", "SSD", "changes waiting"]);
        for Self { name, target, changes_waiting, memory_gib, ssd_gib, .. } in all {
            let waiting = changes_waiting.to_string();
            table.row([line(name).to_string(), line(target).to_string(), size(*memory_gib), size(*ssd_gib), waiting]);
        }
        format!("\n{table}")
    }

    /// The line that people get of one that stands still.
    pub fn people(&self) -> Option<String> {
        let Standstill { why, remedy, seconds } = self.standstill.as_ref()?;
        let time = match seconds {
            0..60 => format!("{seconds} s"),
            60..3600 => format!("{} min", seconds / 60),
            _ => duration(*seconds as f64),
        };
        Some(format!("\ntarget {}: {} for {time}: {}", line(&self.target), line(why), line(remedy)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_get_the_target_the_reason_the_time_and_a_remedy() {
        let standstill = manager::Standstill {
            why: "No space left on device".to_owned(),
            remedy: "make room there".to_owned(),
            seconds: 130,
        };
        let (name, target) = ("/scratch/run1".to_owned(), "/scratch/run1".to_owned());
        let (memory, ssd) = (3 << 20, 5 << 29);
        let mut status = manager::MountStatus { name, target, journal: 3, memory, ssd, standstill: Some(standstill) };
        let people = MountStatus::of(&status).people();
        assert_eq!(
            people.as_deref(),
            Some("\ntarget /scratch/run1: No space left on device for 2 min: make room there")
        );
        status.standstill = None;
        assert_eq!(MountStatus::of(&status).people(), None);
        let table = MountStatus::table(&[MountStatus::of(&status)]);
        let cells: Vec<&str> =
            table.lines().find(|line| line.contains("scratch")).unwrap().split_whitespace().collect();
        assert_eq!(cells, ["/scratch/run1", "/scratch/run1", "3", "MiB", "2.5", "GiB", "3"]);
    }
}
