//! Chunks of which nobody has the bytes: they are made of the rest of their rows.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, MutexGuard, PoisonError};

use bytes::Bytes;
use surgetank_pool_core::benefactor::holdings::{Entry, GroupOf};
use surgetank_pool_core::id::{Inode, Version};
use surgetank_pool_core::meta::Group;
use surgetank_pool_core::parity::{Gather, Parity, is_parity, rows_named};
use surgetank_pool_core::placement::Stripe;
use tokio::task::JoinSet;

use super::Inner;
use super::reader::{ANSWER, Failed, intact};
use crate::chunks::{self, Get, Reply, TableOf};
use crate::security::token::Ticket;

/// Groups of which a session remembers the members.
const GROUPS: usize = 16;

/// The members of rows of a group, as a benefactor's table names them: of all rows of the columns in which it is.
pub(super) struct Rows {
    of: TableOf,
    column: usize,
    members: BTreeMap<u32, Entry>,
}

/// Data chunks of a row.
pub(super) type Row = BTreeMap<u32, Bytes>;

impl Inner {
    fn rows(&self) -> MutexGuard<'_, VecDeque<Arc<Rows>>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a chunk of a column is, and the members of rows with its own, by the first of its column that knows of it.
    async fn members(
        &self,
        of: TableOf,
        group: &Group,
        (chunk, column): (u32, usize),
        ticket: &Ticket,
    ) -> Result<(Entry, Arc<Rows>), Failed> {
        let of_chunk = |rows: &Arc<Rows>| rows.members.get(&chunk).map(|entry| (*entry, Arc::clone(rows)));
        let known = self.rows().iter().filter(|rows| (rows.of, rows.column) == (of, column)).find_map(of_chunk);
        if let Some(known) = known {
            return Ok(known);
        }
        let (mut answers, mut forever) = (Vec::new(), true);
        for place in group.layout.columns.get(column).into_iter().flat_map(|column| &column.places) {
            let get = Get { incarnation: place.incarnation, of, chunk: 0, ticket: ticket.clone() };
            match self.ask_benefactor(place.id, chunks::Request::Table(get), ANSWER).await {
                Some(Reply::Table(table)) => {
                    let rows = rows_named(table, chunk).map(|members| Arc::new(Rows { of, column, members }));
                    let Some(found) = rows.as_ref().and_then(of_chunk) else {
                        answers.push(format!("benefactor {} does not know of it", place.id));
                        continue;
                    };
                    let mut all = self.rows();
                    all.push_back(Arc::clone(&found.1));
                    if all.len() > GROUPS {
                        all.pop_front();
                    }
                    return Ok(found);
                }
                Some(_) => answers.push(format!("benefactor {} does not have the table", place.id)),
                None => {
                    forever = false;
                    answers.push(format!("benefactor {} does not answer", place.id));
                }
            }
        }
        Err(Failed { why: answers.join(", "), forever })
    }
}

/// Makes a chunk of a committed group of the rest of its row; what was read for that of the row's data is there as well.
pub(super) async fn read_lost(
    inner: &Arc<Inner>,
    inode: Inode,
    (index, version, group): (u32, Version, &Group),
    (chunk, parity): (u32, Parity),
) -> Result<Row, Failed> {
    let (of, stripe) = ((GroupOf { inode, group: index }, version, group.by), Stripe::new(&group.layout));
    let ticket = inner.ticket(inode).await;
    let (entry, rows) = inner.members(of, group, (chunk, stripe.column(chunk.into())), &ticket).await?;
    let row = rows.members.iter().map(|(number, entry)| (*number, *entry));
    let mut gather = Gather::<Bytes>::new(parity, (chunk, entry), row);
    let (mut coming, mut read) = (JoinSet::new(), Row::new());
    let (mut answers, mut forever) = (Vec::new(), true);
    loop {
        for number in gather.more() {
            let Some(place) = stripe.places(&group.layout, number).first().copied() else {
                gather.got(number, None);
                continue;
            };
            let get = Get { incarnation: place.incarnation, of, chunk: number, ticket: ticket.clone() };
            let inner = Arc::clone(inner);
            coming.spawn(async move {
                (number, place, inner.ask_benefactor(place.id, chunks::Request::Get(get), ANSWER).await)
            });
        }
        let Some(answered) = coming.join_next().await else { break };
        let Ok((number, place, answer)) = answered else { continue };
        forever &= answer.is_some();
        match intact(answer) {
            Ok((_, bytes)) => {
                if !is_parity(number) {
                    read.insert(number, bytes.clone());
                }
                gather.got(number, Some(bytes));
            }
            Err(why) => {
                answers.push(format!("benefactor {} {why}", place.id));
                gather.got(number, None);
            }
        }
    }
    // The code takes a while for a chunk, during which others are to be answered.
    let made = tokio::task::spawn_blocking(move || gather.finish()).await;
    match made {
        Ok(Ok(bytes)) => {
            read.insert(chunk, bytes.into());
            Ok(read)
        }
        Ok(Err(why)) => {
            answers.push(why.to_string());
            Err(Failed { why: answers.join(", "), forever })
        }
        Err(error) => Err(Failed { why: error.to_string(), forever: false }),
    }
}
