//! `surgetank simulate FILE` of an array of burstable volumes: table, page, JSON.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use surgetank_model::Catalog;
use surgetank_model::units::Span;
use surgetank_planner::price::{CreditArray, instead_of_credits};
use surgetank_planner::scenario::{ArrayScenario, Role};
use surgetank_report::chart::{Axis, Colour, Mark, Picture, Plot, stairs};
use surgetank_report::number::{dollars, plain, thousands};
use surgetank_report::{Failure, Page, Table, output};
use surgetank_whatif::array::{self, ArrayMode, ArrayReport};

/// What is answered.
#[derive(Debug, Serialize)]
pub struct Answer {
    modes: BTreeMap<&'static str, ModeAnswer>,
    /// What would be cheaper; `None`: the members have no credits.
    instead: Option<String>,
    /// Whether what would be cheaper gives the same for ever.
    rotation_pays: Option<bool>,
    warnings: Vec<String>,
    #[serde(skip)]
    reports: Vec<(ArrayMode, ArrayReport)>,
}

#[derive(Debug, Serialize)]
struct ModeAnswer {
    mean_iops: f64,
    mean_mib_s: f64,
    sustained_iops: f64,
    least_iops: f64,
    usd_month: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hit_ratio: Option<f64>,
    #[serde(flatten)]
    rotated: Option<Rotated>,
}

/// Of an array that is rotated.
#[derive(Debug, Serialize)]
struct Rotated {
    rotations: u64,
    overhead_ratio: f64,
    billed_overhead_ratio: f64,
    copied_gib: f64,
    extra_volumes_most: u32,
    refusals: u64,
}

impl ModeAnswer {
    fn of(mode: ArrayMode, report: &ArrayReport) -> Self {
        let rotated = matches!(mode, ArrayMode::Rotated | ArrayMode::ArrayCache);
        Self {
            mean_iops: report.mean_iops,
            mean_mib_s: report.mean_mib_s,
            sustained_iops: report.sustained_iops,
            least_iops: report.least_iops,
            usd_month: report.usd_month,
            hit_ratio: report.hit_ratio,
            rotated: rotated.then_some(Rotated {
                rotations: report.rotations,
                overhead_ratio: report.overhead_ratio,
                billed_overhead_ratio: report.billed_overhead_ratio,
                copied_gib: report.copied_gib,
                extra_volumes_most: report.extra_most,
                refusals: report.refusals,
            }),
        }
    }
}

/// Simulates all modes of a scenario.
///
/// # Errors
/// If the array exists in no mode.
pub fn answer(scenario: &ArrayScenario, catalog: &Catalog) -> Result<Answer, Failure> {
    let run = |mode| array::run(scenario, mode).map(|report| (mode, report));
    let reports: Vec<(ArrayMode, ArrayReport)> = ArrayMode::of(&scenario.role).into_iter().filter_map(run).collect();
    let Some((_, rotated)) = reports.last() else {
        return Err(Failure::invalid("no mode of this array can be simulated: take members of another size"));
    };
    let array = &scenario.array;
    let instead = instead_of_credits(
        catalog,
        &CreditArray {
            volume_type: &array.volume_type,
            members: array.members,
            member_size: array.member_size,
            overhead_ratio: rotated.billed_overhead_ratio,
            demand: None,
        },
    );
    Ok(Answer {
        modes: reports.iter().map(|(mode, report)| (mode.name(), ModeAnswer::of(*mode, report))).collect(),
        rotation_pays: instead.as_ref().map(|instead| !instead.ends_the_game()),
        instead: instead.map(|instead| instead.to_string()),
        warnings: array::troubles(scenario),
        reports,
    })
}

/// Prints an answer, and writes its page and its document into a directory, if there is one.
///
/// # Errors
/// If something cannot be written.
pub fn show(
    answer: &Answer,
    scenario: &ArrayScenario,
    file: &Path,
    out: Option<&Path>,
    json: bool,
) -> Result<(), Failure> {
    let written = out.map(|directory| {
        let page = page(answer, scenario, file)?;
        output::write_into(directory, ("report.html", &page), &[("report.json", &output::json(answer)?)])
    });
    let written = written.transpose()?;
    if json {
        return output::print_json(answer);
    }
    let instead = answer.instead.iter().map(|sentence| format!("\n{sentence}."));
    let report = written.map(|path| format!("\nreport: {}", path.display()));
    let text: String = instead.chain(report).collect();
    output::print(&format!("{}\n\n{}{text}", described(scenario), table(answer)))
}

/// What keeps the array from being rotated in time.
pub fn warnings(scenario: &ArrayScenario, file: &Path) -> Vec<String> {
    array::troubles(scenario).into_iter().map(|trouble| format!("{}: {trouble}", file.display())).collect()
}

fn described(scenario: &ArrayScenario) -> String {
    let array = &scenario.array;
    let workload = &scenario.workload;
    let mixed = match workload.write_share {
        0.0 => "reads".to_owned(),
        1.0 => "writes".to_owned(),
        share => format!("reads and {} % writes", plain(share * 100.0)),
    };
    let skew = workload.zipf.map_or_else(String::new, |zipf| format!(", Zipf {}", plain(zipf)));
    let role = match &scenario.role {
        Role::Persistent => String::new(),
        Role::Ephemeral => " that may be emptied".to_owned(),
        Role::ReadCache(below) => format!(" as a read cache over {} of {}", below.volume_type.key(), below.size),
    };
    format!(
        "{} × {} {}{role}, rotate = \"{}\"; {} requests of {} a second for {}: {mixed} of {}{skew}",
        array.members,
        array.member_size,
        array.volume_type.key(),
        array.rotate,
        thousands(workload.requests_per_s),
        workload.request,
        Span(workload.duration),
        workload.used
    )
}

fn table(answer: &Answer) -> Table {
    let mut table =
        Table::of("mode | IOPS | MiB/s | least IOPS | without credits | hits | rotations | more volumes | USD a month");
    for (mode, report) in &answer.reports {
        let rotated = matches!(mode, ArrayMode::Rotated | ArrayMode::ArrayCache);
        let of_rotated = |text: String| if rotated { text } else { "–".to_owned() };
        table.row([
            mode.name().to_owned(),
            thousands(report.mean_iops),
            format!("{:.1}", report.mean_mib_s),
            thousands(report.least_iops),
            thousands(report.sustained_iops),
            report.hit_ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{:.1} %", ratio * 100.0)),
            of_rotated(report.rotations.to_string()),
            of_rotated(format!("{:+.1} %", report.overhead_ratio * 100.0)),
            dollars(report.usd_month, 2),
        ]);
    }
    table
}

const HEIGHT: u32 = 280;
const COLOURS: [Colour; 3] = [Colour::GREEN, Colour::ORANGE, Colour::BLUE];

/// Served requests and credits over time, as a page.
fn page(answer: &Answer, scenario: &ArrayScenario, file: &Path) -> Result<String, Failure> {
    let lead = answer.instead.clone().unwrap_or_else(|| "The members have no burst credits.".to_owned());
    Ok(Page::new("surgetank simulate", "An array of burstable volumes", &lead)
        .paragraph(&format!("{}: {}.", file.display(), described(scenario)))
        .notes(&answer.warnings)
        .table(&table(answer))
        .section("Requests, credits and extra volumes over time")
        .picture(&picture(answer, scenario))?
        .note("Credits: of the member that has the least of them, and faint the mean of all.")
        .html(". List prices, on demand; time is billed as the provider bills it."))
}

fn picture(answer: &Answer, scenario: &ArrayScenario) -> Picture {
    let until = scenario.workload.duration.as_secs_f64();
    let series = |value: fn(&array::Moment) -> f64| {
        let lines = answer.reports.iter().zip(COLOURS);
        lines.map(move |((_, report), colour)| {
            (stairs(report.moments.iter().map(|moment| (moment.at_s, value(moment)))), colour)
        })
    };
    let highest = answer.reports.iter().flat_map(|(_, report)| &report.moments).map(|moment| moment.iops);
    let iops = Axis::linear("IOPS", 0.0..highest.fold(1.0, f64::max) * 1.08);
    let served = Plot::new("", HEIGHT, Axis::seconds(until), iops)
        .marks(series(|moment| moment.iops).map(|(points, colour)| Mark::line(points, colour, 2)));
    let percent = || Axis::linear("credits, %", 0.0..105.0);
    let credits = Plot::new("", HEIGHT, Axis::seconds(until), percent())
        .marks(
            series(|moment| moment.credits_mean * 100.0)
                .map(|(points, colour)| Mark::line(points, colour.faint(0.4), 1)),
        )
        .marks(series(|moment| moment.credits_least * 100.0).map(|(points, colour)| Mark::line(points, colour, 2)));
    let most = answer.reports.iter().map(|(_, report)| report.extra_most).max().unwrap_or(0);
    let volumes = Axis::linear("extra volumes", 0.0..f64::from(most.max(1)) * 1.1);
    let extra = Plot::new("", HEIGHT / 2, Axis::seconds(until), volumes)
        .marks(series(|moment| f64::from(moment.extra)).map(|(points, colour)| Mark::line(points, colour, 2)));
    let names = answer.reports.iter().zip(COLOURS);
    names
        .fold(Picture::new("Requests, credits and extra volumes over time"), |picture, ((mode, _), colour)| {
            picture.entry(colour, mode.name())
        })
        .plot(served)
        .plot(credits)
        .plot(extra)
}
