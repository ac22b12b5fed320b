//! Members of rows that are made again of the others: see [`surgetank_pool_core::parity`].
//!
//! What takes a place over makes its chunks itself, from members that it fetches. The pace is that of copies: it counts what is made, of which the
//! data chunks of a row are fetched for each.

use std::collections::{BTreeMap, VecDeque};

use surgetank_pool_core::benefactor::holdings::Table;
use surgetank_pool_core::id::Incarnation;
use surgetank_pool_core::parity::{Parity, taken_over};
use surgetank_pool_core::repair::Of;
use tokio::time::{Instant, sleep_until};

use super::super::rows::Rows;
use super::{BATCH, BATCH_TIME, Need, NotBrought, Work};
use crate::benefactor::Benefactor;
use crate::chunks::{self, Lost, Rebuild, TableOf};

impl Work {
    /// Has members of a group made again, each of that column; those of which the row has too few.
    pub(super) async fn rebuild(
        &self,
        of: Of,
        parity: Parity,
        wanted: &BTreeMap<u32, usize>,
        need: Need<'_>,
    ) -> Result<Vec<u32>, NotBrought> {
        let (layout, table_of) = (&self.group.layout, (of.group, of.version, of.by));
        let except = match need {
            Need::Place { place, is_there: false, .. } => Some(place.id),
            // It may have others that are not damaged.
            Need::Place { .. } | Need::Damaged => None,
        };
        let rows = Rows::read(&self.manager, table_of, (layout, parity), except).await;
        let (is_place, sources) = (matches!(need, Need::Place { .. }), rows.sources());
        let there = match need {
            Need::Place { is_there: true, .. } => self.copy_of(table_of, &rows, wanted, &sources).await?,
            Need::Place { .. } | Need::Damaged => Table::new(),
        };
        let (mut lost, mut lacking) = (Vec::new(), Vec::new());
        for chunk in wanted.keys().filter(|chunk| !there.contains_key(chunk)) {
            match rows.lost(*chunk) {
                Some(of) => lost.push(of),
                None => lacking.push(*chunk),
            }
        }
        let mut brought = Table::new();
        for batch in lost.chunks(BATCH) {
            if is_place && !lacking.is_empty() {
                return Err(NotBrought::NoSource);
            }
            let bytes = batch.iter().map(|lost| u64::from(lost.entry.length)).sum();
            let next = Instant::now() + self.rate().time_for(bytes);
            let made = self.make(table_of, parity, batch.to_vec(), &sources).await?;
            lacking.extend(batch.iter().map(|lost| lost.chunk).filter(|chunk| !made.contains_key(chunk)));
            brought.extend(made);
            sleep_until(next).await;
        }
        if !lacking.is_empty() && (is_place || brought.is_empty()) {
            return Err(NotBrought::NoSource);
        }
        if let Need::Place { place, columns, .. } = need {
            let all = taken_over(layout, place, columns, self.group.present(), &rows.known);
            brought = all.ok_or(NotBrought::NoSource)?;
        }
        self.adopt(table_of, brought).await.map(|()| lacking)
    }

    /// Has members fetched from where they are; those that were.
    async fn copy_of(
        &self,
        of: TableOf,
        rows: &Rows,
        wanted: &BTreeMap<u32, usize>,
        sources: &[(String, Incarnation)],
    ) -> Result<Table, NotBrought> {
        let at = |chunk: &u32| Some((*chunk, VecDeque::from([rows.source(*chunk)?])));
        let (part, mut copied): (Vec<_>, _) = (wanted.keys().filter_map(at).collect(), Table::new());
        for batch in part.chunks(BATCH) {
            let bytes = batch.iter().filter_map(|(_, from)| Some(u64::from(from.front()?.0.length))).sum();
            let next = Instant::now() + self.rate().time_for(bytes);
            copied.extend(self.copy(of, batch.to_vec(), sources).await?);
            sleep_until(next).await;
        }
        Ok(copied)
    }

    /// Has chunks made; those that were.
    async fn make(
        &self,
        of: TableOf,
        parity: Parity,
        mut lost: Vec<Lost>,
        sources: &[(String, Incarnation)],
    ) -> Result<Table, NotBrought> {
        let (incarnation, id) = (self.to.lends.place.incarnation, self.to.lends.place.id);
        let mut full_since = None;
        while !lost.is_empty() {
            let (mount, sources) = (self.mount, sources.to_vec());
            let rebuild = Rebuild { incarnation, fence: self.fence(), mount, of, parity, lost: lost.clone(), sources };
            match self.to.peer.ask::<Benefactor>(chunks::Request::Rebuild(rebuild), BATCH_TIME).await {
                Ok(chunks::Reply::Done) => break,
                // What is there already is not made again.
                Ok(chunks::Reply::Full) => self.wait_for_room(&mut full_since).await?,
                Ok(chunks::Reply::NotCopied(missed)) => {
                    full_since = None;
                    let before = lost.len();
                    lost.retain(|lost| lost.chunk != missed);
                    if lost.len() == before {
                        return Err(NotBrought::NotTaken(id));
                    }
                }
                _ => return Err(NotBrought::NotTaken(id)),
            }
        }
        Ok(lost.into_iter().map(|lost| (lost.chunk, lost.entry)).collect())
    }
}
