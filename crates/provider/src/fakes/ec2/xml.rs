//! The answers of EC2, as its model has them.

use time::OffsetDateTime;

use super::super::cloud::{Progress, Seen, State};

/// An element with a text.
pub fn leaf(name: &str, text: impl ToString) -> String {
    let text = text.to_string();
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // As XML's parsers would make a space of it.
            '\r' | '\n' | '\t' => escaped.push_str(&format!("&#{};", u32::from(c))),
            c => escaped.push(c),
        }
    }
    format!("<{name}>{escaped}</{name}>")
}

/// An element with elements.
pub fn node(name: &str, inner: impl AsRef<str>) -> String {
    format!("<{name}>{}</{name}>", inner.as_ref())
}

/// An answer.
pub fn answer(action: &str, inner: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<{action}Response xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\">{}{inner}</{action}Response>",
        leaf("requestId", "59dbff89-35bd-4eac-99ed-be587EXAMPLE")
    )
}

/// A refusal.
pub fn refusal(code: &str, said: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Response><Errors><Error>{}{}</Error></Errors>{}</Response>",
        leaf("Code", code),
        leaf("Message", said),
        leaf("RequestID", "59dbff89-35bd-4eac-99ed-be587EXAMPLE")
    )
}

fn time_of(ms: u64) -> Option<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp(i64::try_from(ms / 1000).ok()?).ok()
}

/// A time such as `2026-11-28T09:57:58.123Z`.
pub fn time(ms: u64) -> String {
    let at = time_of(ms).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (month, millis) = (u8::from(at.month()), ms % 1000);
    let (year, day, hour, minute, second) = (at.year(), at.day(), at.hour(), at.minute(), at.second());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// A time as the header `Date` has it.
pub fn http_time(ms: u64) -> String {
    let at = time_of(ms).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (weekday, month) = (at.weekday().to_string(), at.month().to_string());
    let (year, day, hour, minute, second) = (at.year(), at.day(), at.hour(), at.minute(), at.second());
    format!("{}, {day:02} {} {year:04} {hour:02}:{minute:02}:{second:02} GMT", &weekday[..3], &month[..3])
}

/// The members of a volume.
pub fn volume(seen: &Seen) -> String {
    let volume = &seen.volume;
    let status = match seen.state {
        State::Creating => "creating",
        State::Available => "available",
        State::InUse => "in-use",
        State::Deleting => "deleting",
        State::Failed => "error",
    };
    let mut inner = [
        leaf("volumeId", &volume.id),
        leaf("size", volume.gib),
        "<snapshotId/>".to_owned(),
        leaf("availabilityZone", &volume.zone),
        leaf("status", status),
        leaf("createTime", time(volume.created_ms)),
        node("attachmentSet", seen.attachment.as_ref().map(|_| node("item", attachment(seen))).unwrap_or_default()),
    ]
    .concat();
    if !volume.tags.is_empty() {
        let tag = |(key, value): (&String, &String)| node("item", leaf("key", key) + &leaf("value", value));
        inner.push_str(&node("tagSet", volume.tags.iter().map(tag).collect::<String>()));
    }
    inner.push_str(&leaf("volumeType", &volume.kind));
    inner.extend(volume.iops.map(|iops| leaf("iops", iops)));
    inner.extend(volume.throughput.map(|throughput| leaf("throughput", throughput)));
    inner + &leaf("encrypted", volume.encrypted) + &leaf("multiAttachEnabled", false)
}

/// The members of the attachment that a volume has.
pub fn attachment(seen: &Seen) -> String {
    let Some((attachment, state)) = &seen.attachment else { return String::new() };
    let state = match state {
        Progress::Attaching => "attaching",
        Progress::Attached => "attached",
        Progress::Detaching => "detaching",
    };
    [
        leaf("volumeId", &seen.volume.id),
        leaf("instanceId", &attachment.machine),
        leaf("device", &attachment.device),
        leaf("status", state),
        leaf("attachTime", time(attachment.since_ms)),
        leaf("deleteOnTermination", false),
    ]
    .concat()
}
