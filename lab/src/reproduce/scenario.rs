//! A measured mode as a scenario of `surgetank simulate`: what was asked for, and nothing that was measured in it.

use crate::inside::reproduce::{Load, Mode, Sample, THRESHOLD};

/// Seconds that a volume takes to be made, plugged in and found, and to be deleted, in a guest: the lab's own figures
/// (docs/measurements/2026-11-22-peers.md, attach and detach).
const ATTACH_S: f64 = 0.4;
const DETACH_S: f64 = 0.7;

/// A scenario.
pub struct Scenario {
    /// Under which controller.
    pub policy: &'static str,
    /// The file.
    pub text: String,
}

/// The scenario of an elastic mode, if the application's times and sizes are known.
pub fn of(sample: &Sample) -> Option<Scenario> {
    let Load::Checkpoints(app) = &sample.load else { return None };
    let policy = match sample.mode {
        Mode::Paper => "paper",
        Mode::Adaptive => "adaptive",
        Mode::StaticSlow | Mode::StaticFast | Mode::BcachePaper => return None,
    };
    let (setting, (slow, fast)) = (&sample.setting, sample.rates_mib_s);
    let compute_s = app.compute_s * f64::from(app.checkpoints);
    let text = format!(
        "# What ran in the guest: surgetank simulate takes this file.\n\n\
         [app]\nvms = 1\ncompute = \"{compute_s} s\"\ncheckpoints = {}\ncheckpoint_size = \"{} MiB\"\n\
         initial_dump = \"{} MiB\"\n\n\
         [backing]\nsize = \"{} MiB\"\nbandwidth = \"{slow} MiB/s\"\n\n\
         [caching]\nbandwidth = \"{fast} MiB/s\"\ninitial_cache = \"{} MiB\"\n\n\
         [policy]\nname = \"{policy}\"\nutilization_threshold = {THRESHOLD}\ninactivity_delay = \"{} s\"\n\
         sampling = \"{} s\"\nsize_grain = \"{} MiB\"\n\n\
         [provider]\ncreate_s = 0\nattach_s = {ATTACH_S}\ndetach_s = {DETACH_S}\ndelete_s = 0\n",
        app.checkpoints,
        app.checkpoint_mib,
        app.dump_mib,
        setting.backing_mib,
        setting.initial_mib,
        setting.inactivity_s,
        setting.sampling_s,
        setting.grain_mib,
    );
    Some(Scenario { policy, text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inside::reproduce::{Checkpoints, Found};
    use crate::reproduce::table::tests::samples;

    #[test]
    fn what_ran_can_be_predicted() {
        let application = Checkpoints { dump_mib: 128, checkpoint_mib: 96, checkpoints: 3, compute_s: 24.0 };
        let load = Load::Checkpoints(application);
        let of = |mode| super::of(&Sample { mode, load, outcome: Ok(Found::default()), ..samples()[0].clone() });
        assert!(of(Mode::StaticSlow).is_none() && super::of(&samples()[7]).is_none());
        let text = of(Mode::Paper).unwrap().text;
        assert!(text.contains("compute = \"72 s\"") && text.contains("name = \"paper\""), "{text}");
    }
}
