//! Placement against Hall's condition over all sets, and its level against the linear program of the paper.

use std::collections::BTreeMap;

use microlp::{ComparisonOp, OptimizationDirection, Problem, Variable};
use surgetank_allocation::{Demand, PlacementError, Server, place};
use surgetank_model::Bytes;
use surgetank_model::random::Random;

use super::{ensure, naive};

fn random_demands(random: &mut Random) -> (Vec<Server>, Vec<Demand>) {
    let servers: Vec<Server> = (0..1 + random.below(5))
        .map(|index| Server { name: format!("st{index}"), cache: Bytes::new(1 + random.below(1000)) })
        .collect();
    let count = 1 + random.below(6);
    let all: u64 = servers.iter().map(|server| server.cache.get()).sum();
    let fill = [0.7, 0.9, 1.0, 1.1][random.below(4) as usize];
    let demands = (0..count).map(|index| {
        let mut level2: Vec<String> = servers.iter().map(|server| server.name.clone()).collect();
        random.shuffle(&mut level2);
        level2.truncate(1 + random.below(servers.len() as u64) as usize);
        let demand = 2.0 * random.unit() * all as f64 * fill / count as f64;
        Demand { application: format!("app{index}"), level2, demand: Bytes::new(demand as u64) }
    });
    let demands = demands.collect();
    (servers, demands)
}

/// The least largest share of a server that one application has.
fn least_level(servers: &[Server], demands: &[Demand]) -> f64 {
    let mut program = Problem::new(OptimizationDirection::Minimize);
    let z = program.add_var(1.0, (0.0, 1.0));
    let mut of_server: BTreeMap<&str, Vec<(Variable, f64)>> = BTreeMap::new();
    for demand in demands {
        let mut of_demand = Vec::new();
        for name in &demand.level2 {
            let share = program.add_var(0.0, (0.0, f64::INFINITY));
            let cache = naive::cache(servers, name) as f64;
            program.add_constraint([(share, 1.0), (z, -cache)], ComparisonOp::Le, 0.0);
            of_server.entry(name).or_default().push((share, 1.0));
            of_demand.push((share, 1.0));
        }
        program.add_constraint(&of_demand[..], ComparisonOp::Eq, demand.demand.get() as f64);
    }
    for (server, shares) in of_server {
        program.add_constraint(&shares[..], ComparisonOp::Le, naive::cache(servers, server) as f64);
    }
    program.solve().expect("there is a place").into_solution().expect("it ends").objective()
}

pub fn run(seed: u64) -> Result<(), String> {
    let random = &mut Random::from_seed(seed);
    let (servers, demands) = random_demands(random);
    let reach: Vec<Vec<String>> = demands.iter().map(|demand| demand.level2.clone()).collect();
    let wants: Vec<u64> = demands.iter().map(|demand| demand.demand.get()).collect();
    let has_place = naive::has_place(&servers, &reach, &wants);
    match place(&servers, &demands) {
        Ok(places) => {
            ensure(has_place, || "demands are placed that have no place".to_owned())?;
            fits(&servers, &demands, &places)?;
            if seed.is_multiple_of(16) {
                let share =
                    |(server, bytes): (&String, &Bytes)| bytes.get() as f64 / naive::cache(&servers, server) as f64;
                let level = places.iter().flatten().map(share).fold(0.0, f64::max);
                let least = least_level(&servers, &demands);
                // Places are in whole bytes, of servers that have few.
                let byte = servers.iter().map(|server| 1.0 / server.cache.get() as f64).fold(0.0, f64::max);
                ensure(level <= least + 1.001 * byte + 1e-6, || format!("the level is {level}, and could be {least}"))?;
            }
            Ok(())
        }
        Err(PlacementError::Overcommitted { applications, servers: named, wanted, has, unplaced }) => {
            ensure(!has_place, || "demands are refused that have a place".to_owned())?;
            let inside: Vec<&Demand> =
                demands.iter().filter(|demand| applications.contains(&demand.application)).collect();
            let sum: u64 = inside.iter().map(|demand| demand.demand.get()).sum();
            let reached =
                servers.iter().filter(|server| inside.iter().any(|demand| demand.level2.contains(&server.name)));
            let reached: Vec<&Server> = reached.collect();
            let cache: u64 = reached.iter().map(|server| server.cache.get()).sum();
            let is_named = reached.iter().map(|server| &server.name).eq(&named);
            ensure(sum == wanted.get() && cache == has.get() && is_named && sum > cache, || {
                format!("{applications:?} want {sum} of {named:?}, which have {cache}")
            })?;
            let lacks = |name: &String| unplaced.iter().find(|(of, _)| of == name).map_or(0, |(_, bytes)| bytes.get());
            let left: Vec<u64> =
                demands.iter().map(|demand| demand.demand.get() - lacks(&demand.application)).collect();
            ensure(naive::has_place(&servers, &reach, &left), || "the rest has no place either".to_owned())?;
            let mut larger = servers.clone();
            for demand in &demands {
                let server = larger.iter_mut().find(|server| server.name == demand.level2[0]).expect("it is there");
                server.cache = Bytes::new(server.cache.get() + lacks(&demand.application));
            }
            ensure(naive::has_place(&larger, &reach, &wants), || "more cache does not suffice".to_owned())
        }
        Err(PlacementError::Invalid(error)) => Err(error.to_string()),
    }
}

fn fits(servers: &[Server], demands: &[Demand], places: &[BTreeMap<String, Bytes>]) -> Result<(), String> {
    let mut used: BTreeMap<&str, u64> = BTreeMap::new();
    for (demand, place) in demands.iter().zip(places) {
        let sum: u64 = place.values().map(|bytes| bytes.get()).sum();
        ensure(sum == demand.demand.get(), || format!("{} gets {sum}", demand.application))?;
        for (server, bytes) in place {
            ensure(demand.level2.contains(server), || format!("{} does not reach {server}", demand.application))?;
            *used.entry(server).or_default() += bytes.get();
        }
    }
    let is_over = used.iter().find(|(server, used)| **used > naive::cache(servers, server));
    ensure(is_over.is_none(), || format!("{is_over:?} is overcommitted"))
}
