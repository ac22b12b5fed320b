//! The largest flow from applications through the links that they have to servers (Dinic), and the cut that bounds it.

use std::collections::VecDeque;

/// What applications want, what servers have, and who reaches whom.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    /// Edges in pairs: each with the one in the opposite direction behind it.
    edges: Vec<Edge>,
    /// Edges by the node that they leave.
    leaving: Vec<Vec<usize>>,
    applications: usize,
    links: Vec<Link>,
    level: Vec<u32>,
    next: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Edge {
    to: usize,
    room: u64,
}

/// An application's way to a server.
#[derive(Clone, Copy, Debug)]
struct Link {
    application: usize,
    server: usize,
    edge: usize,
}

/// The applications and servers on the source's side of a least cut: what these applications want is more than what they
/// can have, if not all of it flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub applications: Vec<usize>,
    pub servers: Vec<usize>,
}

const SOURCE: usize = 0;
const SINK: usize = 1;
const UNREACHED: u32 = u32::MAX;

impl Flow {
    pub fn new(wants: &[u64], has: &[u64]) -> Self {
        let mut flow = Self {
            edges: Vec::new(),
            leaving: vec![Vec::new(); 2 + wants.len() + has.len()],
            applications: wants.len(),
            links: Vec::new(),
            level: Vec::new(),
            next: Vec::new(),
        };
        for (application, amount) in wants.iter().enumerate() {
            flow.edge(SOURCE, 2 + application, *amount);
        }
        for (server, amount) in has.iter().enumerate() {
            flow.edge(2 + wants.len() + server, SINK, *amount);
        }
        flow
    }

    fn edge(&mut self, from: usize, to: usize, room: u64) -> usize {
        let edge = self.edges.len();
        self.edges.extend([Edge { to, room }, Edge { to: from, room: 0 }]);
        self.leaving[from].push(edge);
        self.leaving[to].push(edge + 1);
        edge
    }

    /// Lets an application reach a server, for this much.
    pub fn link(&mut self, application: usize, server: usize, room: u64) {
        let edge = self.edge(2 + application, 2 + self.applications + server, room);
        self.links.push(Link { application, server, edge });
    }

    /// Sends this much along the latest link, as far as there is room: where the flow begins.
    pub fn send_on_latest(&mut self, amount: u64) {
        let Some(link) = self.links.last().copied() else { return };
        // The edges of applications, then those of servers, are the first ones.
        let way = [2 * link.application, link.edge, 2 * (self.applications + link.server)];
        let amount = way.iter().map(|edge| self.edges[*edge].room).min().unwrap_or(0).min(amount);
        for edge in way {
            self.push(edge, amount);
        }
    }

    fn push(&mut self, edge: usize, amount: u64) {
        self.edges[edge].room -= amount;
        self.edges[edge ^ 1].room += amount;
    }

    /// Sends as much as possible. Answers what applications want and do not get.
    pub fn run(&mut self) -> u64 {
        while self.find_levels() {
            self.next = vec![0; self.leaving.len()];
            while self.advance(SOURCE, u64::MAX) > 0 {}
        }
        self.leaving[SOURCE].iter().map(|edge| self.edges[*edge].room).sum()
    }

    fn find_levels(&mut self) -> bool {
        self.level = vec![UNREACHED; self.leaving.len()];
        self.level[SOURCE] = 0;
        let mut queue = VecDeque::from([SOURCE]);
        while let Some(node) = queue.pop_front() {
            for &edge in &self.leaving[node] {
                let Edge { to, room } = self.edges[edge];
                if room > 0 && self.level[to] == UNREACHED {
                    self.level[to] = self.level[node] + 1;
                    queue.push_back(to);
                }
            }
        }
        self.level[SINK] != UNREACHED
    }

    /// Along one way to the sink; answers how much. As deep as the way is long: each server is on it once.
    fn advance(&mut self, node: usize, amount: u64) -> u64 {
        if node == SINK {
            return amount;
        }
        while let Some(&edge) = self.leaving[node].get(self.next[node]) {
            let Edge { to, room } = self.edges[edge];
            if room > 0 && self.level[to] == self.level[node] + 1 {
                let sent = self.advance(to, amount.min(room));
                if sent > 0 {
                    self.push(edge, sent);
                    return sent;
                }
            }
            self.next[node] += 1;
        }
        0
    }

    /// The cut nearest to the source. Call it after [`Self::run`].
    pub fn cut(&self) -> Cut {
        let side = |nodes: std::ops::Range<usize>| {
            let first = nodes.start;
            nodes.filter(|node| self.level[*node] != UNREACHED).map(|node| node - first).collect()
        };
        let servers = 2 + self.applications;
        Cut { applications: side(2..servers), servers: side(servers..self.leaving.len()) }
    }

    /// What flows: by application, servers ascending, without those to which nothing flows.
    pub fn amounts(&self) -> Vec<Vec<(usize, u64)>> {
        let mut amounts = vec![Vec::new(); self.applications];
        for link in &self.links {
            let amount = self.edges[link.edge + 1].room;
            if amount > 0 {
                amounts[link.application].push((link.server, amount));
            }
        }
        for amounts in &mut amounts {
            amounts.sort_unstable();
        }
        amounts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_takes_a_detour_when_the_straight_way_is_full() {
        let mut flow = Flow::new(&[5, 5], &[5, 5]);
        for (application, server) in [(0, 0), (0, 1), (1, 0)] {
            flow.link(application, server, u64::MAX);
        }
        assert_eq!(flow.run(), 0);
        assert_eq!(flow.amounts(), [vec![(1, 5)], vec![(0, 5)]]);
    }

    #[test]
    fn what_does_not_flow_has_a_cut() {
        let mut flow = Flow::new(&[5, 5, 1], &[7, 9]);
        for (application, server) in [(0, 0), (1, 0), (2, 0), (2, 1)] {
            flow.link(application, server, u64::MAX);
        }
        assert_eq!(flow.run(), 3);
        assert_eq!(flow.cut(), Cut { applications: vec![0, 1], servers: vec![0] });
    }

    #[test]
    fn a_flow_that_begins_somewhere_goes_on_from_there() {
        let mut flow = Flow::new(&[6], &[9, 9]);
        flow.link(0, 0, u64::MAX);
        flow.send_on_latest(2);
        flow.link(0, 1, 4);
        flow.send_on_latest(9);
        assert_eq!(flow.run(), 0);
        assert_eq!(flow.amounts(), [vec![(0, 2), (1, 4)]]);
    }
}
