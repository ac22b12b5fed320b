//! Every bad input has one clear sentence.

use std::time::Duration;

use surgetank_allocation::{
    Application, Demand, Description, Estimate, Hierarchy, Latencies, Level, MissCurve, Model, PlacementError, Problem,
    Server, Setting, Slo, Subject, place, solve,
};
use surgetank_model::Bytes;

fn server(name: &str, mib: u64) -> Server {
    Server { name: name.to_owned(), cache: Bytes::from_mib(mib) }
}

fn application(name: &str) -> Application {
    let points = [(0, 1.0), (100, 0.4), (200, 0.2), (400, 0.2)].map(|(mib, ratio)| (Bytes::from_mib(mib), ratio));
    Application {
        name: name.to_owned(),
        level1: "io1".to_owned(),
        level2: vec!["st1".to_owned()],
        latencies: None,
        estimate: Estimate::Split,
        slo: Slo::AboveFair(0.05),
        model: Model::Curve(MissCurve::new(&points).expect("it falls")),
        accesses_per_s: 100.0,
        most: None,
        queue: None,
        margin: 0.0,
        violations: 0,
    }
}

fn description() -> Description {
    let [level1, level2, disk] = [100, 1000, 10_000].map(Duration::from_micros);
    Description {
        latencies: Latencies { level1, level2, disk },
        hierarchy: Hierarchy::Exclusive,
        level1: vec![server("io1", 100)],
        level2: vec![server("st1", 200)],
        applications: vec![application("A"), application("B")],
        segment: Bytes::from_mib(1),
        change_max: None,
    }
}

fn refused(change: impl FnOnce(&mut Description)) -> String {
    let mut description = description();
    change(&mut description);
    Problem::new(description).map(drop).expect_err("it is refused").to_string()
}

#[test]
fn a_refusal_says_what_of_the_description_it_is_about() {
    type Mistake = fn(&mut Description);
    let mistakes: [(Mistake, Subject); 8] = [
        (|d| d.applications.clear(), Subject::Applications),
        (|d| d.applications[1].name = "A".into(), Subject::Application(1, Setting::Name)),
        (|d| d.applications[1].level1 = "io9".into(), Subject::Application(1, Setting::Level1)),
        (|d| d.applications[1].slo = Slo::AboveFair(0.0), Subject::Application(1, Setting::Slo)),
        (|d| d.latencies.level2 = d.latencies.disk, Subject::Latencies),
        (|d| d.level2.push(server("st1", 1)), Subject::Server(Level::Second, 1)),
        (|d| d.segment = Bytes::from_mib(51), Subject::Server(Level::First, 0)),
        (|d| d.level1.clear(), Subject::Servers(Level::First)),
    ];
    for (mistake, subject) in mistakes {
        let mut description = description();
        mistake(&mut description);
        assert_eq!(Problem::new(description).map(drop).expect_err("it is refused").subject, subject);
    }
}

#[test]
fn a_bad_description_is_refused_with_one_sentence() {
    type Mistake = fn(&mut Description);
    let mistakes: [(Mistake, &str); 28] = [
        (|d| d.applications.clear(), "there is no application"),
        (|d| d.applications[1].name = "A".into(), "two applications are named A"),
        (|d| d.applications[1].name.clear(), "has no name"),
        (|d| d.level1.clear(), "no first-level server"),
        (|d| d.level2.clear(), "application A uses the second-level server st1, which is not there"),
        (|d| d.level2.push(server("st1", 1)), "two second-level servers are named st1"),
        (|d| d.level1[0].name.clear(), "a first-level server has no name"),
        (|d| d.level2[0].cache = Bytes::ZERO, "st1 has no cache"),
        (|d| d.level2[0].cache = Bytes::new(u64::MAX), "more than 1048576 TiB together"),
        (
            |d| d.applications[0].level1 = "io9".into(),
            "application A uses the first-level server io9, which is not there",
        ),
        (|d| d.applications[0].level2 = vec!["io1".into()], "uses the second-level server io1, which is not there"),
        (|d| d.applications[0].level2.push("st1".into()), "names a second-level server twice"),
        (|d| d.applications[0].slo = Slo::AboveFair(0.0), "application A has the SLO 0:"),
        (|d| d.applications[0].slo = Slo::AboveFair(-0.1), "has the SLO -0.1:"),
        (|d| d.applications[0].slo = Slo::AboveFair(f64::NAN), "has the SLO NaN:"),
        (|d| d.applications[0].slo = Slo::AboveFair(f64::INFINITY), "has the SLO inf:"),
        (|d| d.applications[0].slo = Slo::Latency(Duration::ZERO), "an SLO of 0 s"),
        (|d| d.applications[0].accesses_per_s = 0.0, "application A has 0 accesses per second"),
        (|d| d.applications[0].accesses_per_s = f64::NAN, "has NaN accesses per second"),
        (|d| d.applications[0].margin = 1.0, "has the margin 1:"),
        (|d| d.latencies.level1 = Duration::ZERO, "the latency of level 1 is 0"),
        (|d| d.latencies.disk = Duration::from_secs(3601), "the latency of the disk is 3601s: it is 3600s at most"),
        (
            |d| d.applications[0].latencies = Some(Latencies { level2: Duration::from_secs(1), ..d.latencies }),
            "application A: the latencies are 100µs in level 1, 1s in level 2 and 10ms on disk",
        ),
        (|d| d.segment = Bytes::from_mib(120), "below a segment of 120 MiB"),
        (|d| d.latencies.level2 = d.latencies.disk, "each level is slower than the one before it"),
        (
            |d| d.segment = Bytes::from_mib(51),
            "io1 has 100 MiB for 2 applications, and an equal share is below a segment of 51 MiB",
        ),
        (|d| d.change_max = Some(0.0), "the change per interval is 0:"),
        (|d| d.change_max = Some(f64::NAN), "the change per interval is NaN:"),
    ];
    for (mistake, part) in mistakes {
        let message = refused(mistake);
        assert!(message.contains(part), "{message}");
        assert!(!message.contains('\n') && !message.ends_with('.'), "{message}");
    }
}

#[test]
fn demands_that_have_no_place_are_named() {
    let demand = |name: &str, servers: &[&str], mib: u64| Demand {
        application: name.to_owned(),
        level2: servers.iter().map(|server| (*server).to_owned()).collect(),
        demand: Bytes::from_mib(mib),
    };
    let servers = [server("st1", 100), server("st2", 100)];
    let demands = [demand("A", &["st1"], 60), demand("B", &["st1"], 50), demand("C", &["st1", "st2"], 20)];
    assert_eq!(
        place(&servers, &demands).unwrap_err().to_string(),
        "A, B want 110.0 MiB together, and the servers that they reach have 100.0 MiB: st1"
    );
    let invalid = |demands: &[Demand]| match place(&servers, demands) {
        Err(PlacementError::Invalid(error)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    // Either remedy suffices: to want less, or as much more where they have none.
    let Err(PlacementError::Overcommitted { unplaced, .. }) = place(&servers, &demands) else { panic!("it is placed") };
    assert_eq!(unplaced.iter().map(|(_, bytes)| bytes.get()).sum::<u64>(), Bytes::from_mib(10).get());
    assert!(invalid(&[demand("A", &[], 1)]).contains("reaches no second-level server"));
    assert!(invalid(&[demand("A", &["st9"], 1)]).contains("st9, which is not there"));
    assert!(invalid(&[demand("A", &["st1"], 1), demand("A", &["st1"], 1)]).contains("two applications are named A"));
    assert!(invalid(&[Demand { demand: Bytes::new(u64::MAX), ..demand("A", &["st1"], 1) }]).contains("want more than"));
}

#[test]
fn an_infeasible_problem_names_the_application_and_what_it_takes() {
    let mut description = description();
    description.applications[0].slo = Slo::Latency(Duration::from_micros(2000));
    // Else relaxing either would do as well.
    description.applications[1].slo = Slo::AboveFair(99.0);
    let plan = solve(&Problem::new(description).expect("it is valid"), None);
    let infeasible = plan.infeasible().expect("2 ms takes more than there is");
    assert_eq!(infeasible.relaxed.len(), 1);
    assert_eq!(infeasible.relaxed[0].application, "A");
    let message = infeasible.to_string();
    assert!(message.starts_with("no shares meet all SLOs: application A cannot have 2.000000 ms, but "), "{message}");
}
