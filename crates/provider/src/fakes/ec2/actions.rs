//! What each call does, and how EC2 words its refusals.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use surgetank_model::catalog::Catalog;
use surgetank_model::units::GIB;

use super::cloud::{Refusal, Seen, Wanted};
use super::xml::{attachment, leaf, node, volume};
use super::{ACCOUNT, Ec2, Refused, Sent, TOKEN_LIFE};
use crate::Tags;
use crate::clock::whole_ms;

/// The most tags of a volume.
const TAGS_MAX: usize = 50;
/// The zones of the region.
const ZONES: &[&str] = &["eu-north-1a", "eu-north-1b", "eu-north-1c"];

/// What EC2 says when something cannot be done with a volume.
fn refused(refusal: Refusal, id: &str) -> Refused {
    match refusal {
        Refusal::NoVolume => ("InvalidVolume.NotFound", format!("The volume '{id}' does not exist.")),
        // Nobody names a volume here.
        Refusal::Exists | Refusal::State => {
            ("IncorrectState", format!("The volume '{id}' is in a state that does not allow this."))
        }
        Refusal::InUse => ("VolumeInUse", format!("{id} is already attached to an instance")),
        Refusal::Limit => ("VolumeLimitExceeded", "You have exceeded your maximum volume limit.".to_owned()),
        Refusal::AttachmentLimit => {
            ("AttachmentLimitExceeded", "The attachment limit of this instance is exceeded.".to_owned())
        }
        Refusal::NameInUse => {
            let said = "Invalid value for unixDevice. Attachment point is already in use";
            ("InvalidParameterValue", said.to_owned())
        }
        Refusal::OtherZone => (
            "InvalidVolume.ZoneMismatch",
            format!("The volume '{id}' is not in the same availability zone as instance"),
        ),
        Refusal::Modifying => {
            ("IncorrectModificationState", format!("Volume {id} is being modified. Wait until that is complete."))
        }
        Refusal::ModifiedTooOften => {
            ("VolumeModificationRateExceeded", format!("The modifications of {id} have reached their limit."))
        }
    }
}

fn missing(name: &str) -> Refused {
    ("MissingParameter", format!("The request must contain the parameter {name}"))
}

fn invalid(what: impl Into<String>) -> Refused {
    ("InvalidParameterValue", what.into())
}

impl Sent {
    fn get(&self, name: &str) -> Option<&str> {
        self.parameters.get(name).map(|value| &**value)
    }

    fn need(&self, name: &str) -> Result<&str, Refused> {
        self.get(name).filter(|value| !value.is_empty()).ok_or_else(|| missing(name))
    }

    fn number(&self, name: &str) -> Result<Option<u64>, Refused> {
        let odd = |value: &str| invalid(format!("Value ({value}) for parameter {name} is invalid."));
        self.get(name).map(|value| value.parse().map_err(|_| odd(value))).transpose()
    }

    fn volume(&self, name: &str) -> Result<&str, Refused> {
        let id = self.need(name)?;
        let digits = id.strip_prefix("vol-").unwrap_or_default();
        if matches!(digits.len(), 8 | 17) && digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Ok(id);
        }
        Err(("InvalidParameterValue", format!("Value ({id}) for parameter volumeId is invalid. Expected: 'vol-...'.")))
    }

    /// The tags under a prefix, such as `Tag.`.
    fn tags(&self, prefix: &str) -> Result<Vec<(String, Option<String>)>, Refused> {
        let keys = (1..).map_while(|number| {
            let key = self.get(&format!("{prefix}{number}.Key"))?;
            Some((key.to_owned(), self.get(&format!("{prefix}{number}.Value")).map(str::to_owned)))
        });
        let tags: Vec<_> = keys.collect();
        let is_odd = |(key, value): &(String, Option<String>)| {
            let length = |text: &str| text.chars().count();
            key.is_empty()
                || length(key) > 128
                || key.starts_with("aws:")
                || value.as_deref().is_some_and(|value| length(value) > 256)
        };
        match tags.iter().find(|tag| is_odd(tag)) {
            Some((key, _)) => Err(invalid(format!("Tag key or value of {key} is invalid."))),
            None => Ok(tags),
        }
    }
}

impl Ec2 {
    /// Carries a call out.
    pub(super) fn carry_out(&mut self, sent: &Sent) -> Result<String, Refused> {
        if sent.get("DryRun") == Some("true") {
            return Err(("DryRunOperation", "Request would have succeeded, but DryRun flag is set.".to_owned()));
        }
        match &*sent.action {
            "DescribeInstances" => self.describe_instances(sent),
            "DescribeVolumes" => self.describe_volumes(sent),
            "CreateVolume" => self.create_volume(sent),
            "AttachVolume" => self.attach_volume(sent),
            "DetachVolume" => self.detach_volume(sent),
            "DeleteVolume" => {
                let id = sent.volume("VolumeId")?;
                self.cloud.delete(id).map_err(|refusal| refused(refusal, id))?;
                Ok(leaf("return", true))
            }
            "CreateTags" | "DeleteTags" => self.change_tags(sent),
            "ModifyVolume" => self.modify_volume(sent),
            "DescribeVolumesModifications" => self.describe_modifications(sent),
            action => Err(("InvalidAction", format!("The action {action} is not valid for this web service."))),
        }
    }

    fn describe_instances(&self, sent: &Sent) -> Result<String, Refused> {
        let (instance, zone) = &self.cloud.machine;
        let id = sent.need("InstanceId.1")?;
        let state = if id == instance { Some("running") } else { self.cloud.others.get(id).copied() };
        let Some(state) = state else {
            return Err(("InvalidInstanceID.NotFound", format!("The instance ID '{id}' does not exist")));
        };
        let code = match state {
            "running" => 16,
            "shutting-down" => 32,
            "terminated" => 48,
            _ => 80,
        };
        let described = [
            leaf("instanceId", id),
            leaf("instanceType", &self.instance_type),
            node("placement", leaf("availabilityZone", zone) + &leaf("tenancy", "default")),
            node("instanceState", leaf("code", code) + &leaf("name", state)),
        ];
        let instances = node("instancesSet", node("item", described.concat()));
        let reservation = leaf("reservationId", "r-0123456789abcdef0") + &leaf("ownerId", ACCOUNT) + &instances;
        Ok(node("reservationSet", node("item", reservation)))
    }

    fn describe_volumes(&mut self, sent: &Sent) -> Result<String, Refused> {
        if sent.get("VolumeId.1").is_some() {
            if sent.get("MaxResults").is_some() {
                let said = "The parameter volumeId cannot be used with the parameter maxResults";
                return Err(("InvalidParameterCombination", said.to_owned()));
            }
            let ids =
                (1..).map_while(|number| sent.get(&format!("VolumeId.{number}")).map(|_| format!("VolumeId.{number}")));
            let mut items = String::new();
            for name in ids.collect::<Vec<_>>() {
                let id = sent.volume(&name)?;
                let seen = self.cloud.describe(id).map_err(|refusal| refused(refusal, id))?;
                items.push_str(&node("item", volume(&seen)));
            }
            return Ok(node("volumeSet", items));
        }
        let wanted = sent.number("MaxResults")?;
        if wanted.is_some_and(|wanted| !(5..=1000).contains(&wanted)) {
            return Err(invalid("Value for parameter maxResults is invalid. Expecting a value between 5 and 1000."));
        }
        let filters = filters(sent)?;
        let matches = |seen: &Seen| filters.iter().all(|(name, values)| is_match(seen, name, values));
        let after = sent.get("NextToken").unwrap_or_default().to_owned();
        let shown = self.cloud.list().into_iter().filter(|seen| matches(seen) && seen.volume.id > after);
        let page = wanted.map_or(self.cloud.settings.page, |wanted| {
            usize::try_from(wanted).unwrap_or_default().min(self.cloud.settings.page)
        });
        let shown: Vec<Seen> = shown.take(page + 1).collect();
        let items: String = shown.iter().take(page).map(|seen| node("item", volume(seen))).collect();
        let next = (shown.len() > page).then(|| leaf("nextToken", &shown[page - 1].volume.id));
        Ok(node("volumeSet", items) + &next.unwrap_or_default())
    }

    fn create_volume(&mut self, sent: &Sent) -> Result<String, Refused> {
        let zone = sent.need("AvailabilityZone")?;
        if !ZONES.contains(&zone) {
            return Err(("InvalidZone.NotFound", format!("The zone '{zone}' does not exist.")));
        }
        let wanted = wanted(sent, zone)?;
        let now_ms = self.cloud.now_ms();
        self.tokens.retain(|_, (_, _, at_ms)| now_ms < *at_ms + whole_ms(TOKEN_LIFE));
        // As real EC2 does, before it looks at the token.
        if self.cloud.count() >= self.cloud.settings.volumes_max {
            return Err(refused(Refusal::Limit, ""));
        }
        let token = sent.get("ClientToken").filter(|token| !token.is_empty());
        if token.is_some_and(|token| token.len() > 64 || !token.is_ascii()) {
            return Err(invalid("Value for parameter clientToken is invalid."));
        }
        let Some(token) = token else { return Ok(volume(&self.make(wanted)?)) };
        if let Some((parameters, id, _)) = self.tokens.get(token) {
            if *parameters != sent.parameters {
                let said = "The request uses the same client token as a previous, but non-identical request.";
                return Err(("IdempotentParameterMismatch", said.to_owned()));
            }
            let gone = "The client token you have provided is associated with a resource that is already deleted.";
            return match self.cloud.made(id) {
                Ok(seen) => Ok(volume(&seen)),
                Err(_) => Err(("IdempotentParameterMismatch", gone.to_owned())),
            };
        }
        let seen = self.make(wanted)?;
        self.tokens.insert(token.to_owned(), (sent.parameters.clone(), seen.volume.id.clone(), now_ms));
        Ok(volume(&seen))
    }

    fn make(&mut self, wanted: Wanted) -> Result<Seen, Refused> {
        let needs_key = wanted.encrypted;
        let seen = self.cloud.create(wanted).map_err(|refusal| refused(refusal, ""))?;
        if needs_key && self.is_key_denied {
            self.cloud.take_back(&seen.volume.id);
        }
        Ok(seen)
    }

    fn attach_volume(&mut self, sent: &Sent) -> Result<String, Refused> {
        let (id, device) = (sent.volume("VolumeId")?, sent.need("Device")?);
        self.check_instance(sent.need("InstanceId")?)?;
        if !device.starts_with("/dev/sd") && !device.starts_with("/dev/xvd") {
            return Err(invalid(format!("Value ({device}) for parameter device is invalid.")));
        }
        Ok(attachment(&self.cloud.attach(id, device).map_err(|refusal| refused(refusal, id))?))
    }

    fn detach_volume(&mut self, sent: &Sent) -> Result<String, Refused> {
        let id = sent.volume("VolumeId")?;
        if let Some(instance) = sent.get("InstanceId") {
            self.check_instance(instance)?;
        }
        if sent.get("Force").is_some() {
            return Err(invalid("nobody detaches by force here"));
        }
        Ok(attachment(&self.cloud.detach(id).map_err(|refusal| refused(refusal, id))?))
    }

    fn check_instance(&self, instance: &str) -> Result<(), Refused> {
        if instance == self.cloud.machine.0 {
            return Ok(());
        }
        Err(("InvalidInstanceID.NotFound", format!("The instance ID '{instance}' does not exist")))
    }

    fn change_tags(&mut self, sent: &Sent) -> Result<String, Refused> {
        let (id, changes) = (sent.volume("ResourceId.1")?, sent.tags("Tag.")?);
        let creates = sent.action == "CreateTags";
        let present = self.cloud.made(id).map_err(|refusal| refused(refusal, id))?.volume.tags;
        if changes.is_empty() {
            return Err(missing("tagSet"));
        }
        let added = changes.iter().filter(|(key, _)| creates && !present.contains_key(key)).count();
        if present.len() + added > TAGS_MAX {
            return Err(("TagLimitExceeded", "More than 50 tags.".to_owned()));
        }
        let change = |tags: &mut Tags| {
            for (key, value) in changes {
                if creates {
                    tags.insert(key, value.unwrap_or_default());
                } else if value.is_none() || tags.get(&key) == value.as_ref() {
                    tags.remove(&key);
                }
            }
        };
        self.cloud.set_tags(id, change).map_err(|refusal| refused(refusal, id))?;
        Ok(leaf("return", true))
    }

    fn modify_volume(&mut self, sent: &Sent) -> Result<String, Refused> {
        let id = sent.volume("VolumeId")?;
        let present = self.cloud.made(id).map_err(|refusal| refused(refusal, id))?.volume;
        let gib = sent.number("Size")?.unwrap_or(present.gib);
        if gib < present.gib {
            return Err(invalid("New size cannot be smaller than existing size"));
        }
        check_size(&present.kind, gib)?;
        self.cloud.grow(id, gib).map_err(|refusal| refused(refusal, id))?;
        let modification = [
            leaf("volumeId", id),
            leaf("modificationState", "modifying"),
            leaf("targetSize", gib),
            leaf("originalSize", present.gib),
            leaf("progress", 0),
        ];
        Ok(node("volumeModification", modification.concat()))
    }

    fn describe_modifications(&mut self, sent: &Sent) -> Result<String, Refused> {
        let id = sent.volume("VolumeId.1")?;
        let growth = self.cloud.growth(id).map_err(|refusal| refused(refusal, id))?;
        let item = growth.map(|(gib, is_done)| {
            let state = if is_done { "completed" } else { "modifying" };
            let members = [leaf("volumeId", id), leaf("modificationState", state), leaf("targetSize", gib)];
            node("item", members.concat())
        });
        Ok(node("volumeModificationSet", item.unwrap_or_default()))
    }
}

/// What a creation asks for.
fn wanted(sent: &Sent, zone: &str) -> Result<Wanted, Refused> {
    let kind = sent.get("VolumeType").unwrap_or("gp2");
    let gib = sent.number("Size")?.ok_or_else(|| missing("size"))?;
    check_size(kind, gib)?;
    let (iops, throughput) = (sent.number("Iops")?, sent.number("Throughput")?);
    match (kind, iops) {
        ("io1" | "io2", None) => return Err(missing("iops")),
        ("gp3", Some(iops)) if !(3000..=80_000).contains(&iops) || (iops > 3000 && iops > gib * 500) => {
            return Err(invalid("Iops of gp3 are 3000 to 80000, and 500 a GiB at most"));
        }
        ("gp2" | "st1" | "sc1", Some(_)) => {
            let said = format!("The parameter iops is not supported for {kind} volumes.");
            return Err(("InvalidParameterCombination", said));
        }
        _ => {}
    }
    if let Some(throughput) = throughput {
        let most = iops.unwrap_or(3000) / 4;
        if kind != "gp3" || !(125..=2000).contains(&throughput) || throughput > most {
            return Err(invalid(format!("Throughput is 125 to 2000 MiB/s, of gp3, and {most} for these IOPS")));
        }
    }
    let tags = sent.tags("TagSpecification.1.Tag.")?;
    if !tags.is_empty() && sent.get("TagSpecification.1.ResourceType") != Some("volume") {
        return Err(invalid("Tag specification resource type must have a value of volume"));
    }
    if tags.len() > TAGS_MAX {
        return Err(("TagLimitExceeded", "More than 50 tags.".to_owned()));
    }
    Ok(Wanted {
        id: None,
        gib,
        kind: kind.to_owned(),
        zone: zone.to_owned(),
        tags: tags.into_iter().map(|(key, value)| (key, value.unwrap_or_default())).collect(),
        encrypted: sent.get("Encrypted") == Some("true"),
        iops,
        throughput,
    })
}

fn check_size(kind: &str, gib: u64) -> Result<(), Refused> {
    static CATALOG: LazyLock<Catalog> = LazyLock::new(Catalog::builtin);
    let Some(known) = CATALOG.find("aws", kind) else {
        return Err(invalid(format!("Value ({kind}) for parameter volumeType is invalid.")));
    };
    if ((known.size.min.get() / GIB)..=(known.size.max.get() / GIB)).contains(&gib) {
        return Ok(());
    }
    Err(invalid(format!("Volume of {gib}GiB is outside of the limits of {kind}.")))
}

/// Names of filters, and the values of which one is to match.
fn filters(sent: &Sent) -> Result<BTreeMap<String, Vec<String>>, Refused> {
    let mut filters = BTreeMap::new();
    for number in 1.. {
        let Some(name) = sent.get(&format!("Filter.{number}.Name")) else { break };
        if !name.starts_with("tag:") && name != "tag-key" {
            return Err(invalid(format!("The filter '{name}' is invalid")));
        }
        let values = (1..).map_while(|value| sent.get(&format!("Filter.{number}.Value.{value}")).map(str::to_owned));
        filters.insert(name.to_owned(), values.collect());
    }
    Ok(filters)
}

fn is_match(seen: &Seen, name: &str, values: &[String]) -> bool {
    let tags = &seen.volume.tags;
    values.iter().any(|value| match name.strip_prefix("tag:") {
        Some(key) => tags.get(key).is_some_and(|there| is_like(there.as_bytes(), value.as_bytes())),
        None => tags.keys().any(|key| is_like(key.as_bytes(), value.as_bytes())),
    })
}

/// Whether a text is like a pattern, in which `*` and `?` stand for others.
fn is_like(text: &[u8], pattern: &[u8]) -> bool {
    match (pattern, text) {
        ([], text) => text.is_empty(),
        ([b'*', rest @ ..], text) => (0..=text.len()).any(|from| is_like(&text[from..], rest)),
        ([b'?', rest @ ..], [_, text @ ..]) => is_like(text, rest),
        ([b'\\', literal, rest @ ..], [first, text @ ..]) => literal == first && is_like(text, rest),
        ([literal, rest @ ..], [first, text @ ..]) => literal == first && is_like(text, rest),
        _ => false,
    }
}
