//! How changes end, whatever is told of their operations: the disk and the machine count.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use surgetank_model::Bytes;
use surgetank_provider::fakes::{Fault, Settings};
use surgetank_provider::{Change, Provider, ProviderError, Transition, VolumeId, VolumeState, tag};

use crate::account::{Account, request, request_with_token};
use crate::faked::behaviour::poll;

/// What changes the machine.
const MACHINE: &str = "virtualMachines.attachDetachDataDisks";
/// Longer than an operation that nobody may read is believed to go on.
const LONG: Duration = Duration::from_secs(200);

/// The state in which a list shows a disk.
fn listed(provider: &dyn Provider, id: &VolumeId) -> VolumeState {
    let listed = provider.list(tag::OWNER, "a").unwrap();
    listed.iter().find(|volume| volume.id == *id).unwrap_or_else(|| panic!("{id:?} of {listed:?}")).state
}

#[test]
fn a_list_shows_what_has_become_of_a_change_that_nobody_has_looked_at() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.made(&provider, "a");
    account.fake.fail_operation("disks.delete", "InternalOperationError", "Internal error");
    assert_eq!(provider.delete(&id), Ok(Change::Changed));
    assert_eq!(listed(&provider, &id), VolumeState::Deleting);
    account.pass(Duration::from_secs(10));
    assert_eq!(listed(&provider, &id), VolumeState::Available, "it is there, and somebody has to delete it again");
    let told = provider.delete(&id);
    assert!(matches!(&told, Err(ProviderError::Transient(text)) if text.contains("Internal error")), "{told:?}");
    provider.attach(&id).unwrap();
    account.pass(Duration::from_secs(10));
    assert_eq!(listed(&provider, &id), VolumeState::Attached);
    provider.detach(&id).unwrap();
    assert_eq!(listed(&provider, &id), VolumeState::Detaching);
    account.pass(Duration::from_secs(10));
    assert_eq!(listed(&provider, &id), VolumeState::Available);
    assert_eq!(provider.delete(&id), Ok(Change::Changed));
    account.pass(Duration::from_secs(10));
    assert_eq!(provider.list(tag::OWNER, "a"), Ok(Vec::new()));
}

#[test]
fn lists_leave_out_disks_that_bear_our_tags_and_not_their_name() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let wanted = request_with_token("a");
    let id = provider.create(&wanted).unwrap().0.id;
    account.reaches(&provider, &id, VolumeState::Available);
    let names = ["backup", "surgetank-backup", "surgetank-", &id.0.replace("surgetank-", "SURGETANK-")];
    for name in names {
        account.fake.copy(&id.0, name);
    }
    assert_eq!(account.fake.disks(), 1 + names.len());
    for (key, value) in [(tag::OWNER, "a"), (tag::TOKEN, &*wanted.token)] {
        let listed: Vec<VolumeId> = provider.list(key, value).unwrap().into_iter().map(|volume| volume.id).collect();
        assert_eq!(listed, std::slice::from_ref(&id), "{key}");
    }
}

#[test]
fn a_list_whose_pages_do_not_end_is_an_error() {
    let account = Account::new(Settings { page: 1, ..Settings::default() });
    let provider = account.open();
    for _ in 0..2 {
        provider.create(&request("a")).unwrap();
    }
    account.fake.repeat_pages();
    let listed = provider.list(tag::OWNER, "a");
    assert!(matches!(&listed, Err(ProviderError::Transient(text)) if text.contains("does not end")), "{listed:?}");
}

#[test]
fn a_list_that_goes_on_where_nobody_can_is_an_error() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.made(&provider, "a");
    for link in [json!(7), json!({}), json!(["x"]), json!(true), json!("elsewhere"), json!("https://x/other")] {
        account.fake.lead_on_to(link.clone());
        let told = provider.list(tag::OWNER, "a");
        assert!(matches!(&told, Err(ProviderError::Transient(text)) if text.contains("goes on nowhere")), "{link}");
    }
    for link in [Value::Null, json!("")] {
        account.fake.lead_on_to(link);
        assert_eq!(listed(&provider, &id), VolumeState::Available);
    }
}

#[test]
fn a_deletion_that_is_told_to_have_ended_counts_when_the_disk_is_gone() {
    let account = Account::new(Settings { delete: Duration::from_secs(30), ..Settings::default() });
    let provider = account.open();
    let id = account.made(&provider, "a");
    account.fake.tell_of_operations(Some((200, json!({ "status": "Succeeded" }))));
    assert_eq!(provider.delete(&id), Ok(Change::Changed));
    account.pass(Duration::from_secs(10));
    assert_eq!(provider.describe(&id).unwrap().state, VolumeState::Deleting);
    poll(&account, &provider, &id, None);
    assert_eq!(provider.list(tag::OWNER, "a"), Ok(Vec::new()));
    // One that somebody else has deleted was not deleted by this call.
    account.fake.set(|settings| settings.delete = Duration::ZERO);
    let id = account.made(&provider, "a");
    assert_eq!(provider.describe(&id).unwrap().state, VolumeState::Available);
    assert_eq!(account.open().delete(&id), Ok(Change::Changed));
    assert_eq!(provider.delete(&id), Ok(Change::Identity));
}

#[test]
fn an_operation_of_which_nothing_clear_is_told_is_no_success() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.made(&provider, "a");
    let error = json!({ "code": "InternalOperationError", "message": "Internal error" });
    for body in [Value::Null, json!({}), json!({ "status": null }), json!({ "properties": {} })] {
        // Nothing is done, and the operation does not say so.
        account.fake.fail_operation("disks.delete", "InternalOperationError", "Internal error");
        assert_eq!(provider.delete(&id), Ok(Change::Changed));
        account.fake.tell_of_operations(Some((200, body.clone())));
        account.pass(Duration::from_secs(10));
        assert_eq!(provider.describe(&id).unwrap().state, VolumeState::Deleting, "{body}");
        account.pass(LONG);
        assert_eq!(provider.describe(&id).unwrap().state, VolumeState::Available, "{body}");
    }
    for body in [json!({ "status": "Succeeded", "error": error }), json!({ "error": error })] {
        account.fake.fail_operation("disks.delete", "InternalOperationError", "Internal error");
        assert_eq!(provider.delete(&id), Ok(Change::Changed));
        account.fake.tell_of_operations(Some((200, body.clone())));
        account.pass(Duration::from_secs(10));
        let told = provider.describe(&id);
        assert!(matches!(&told, Err(ProviderError::Transient(text)) if text.contains("Internal error")), "{told:?}");
        assert_eq!(provider.describe(&id).unwrap().state, VolumeState::Available, "{body}");
    }
}

#[test]
fn an_operation_that_cannot_be_read_is_neither_a_failure_nor_a_success() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.made(&provider, "a");
    let foreign = json!({ "error": "no such route" });
    let own = json!({ "error": { "code": "OperationNotFound", "message": "It cannot be found." } });
    for (status, body) in [404, 410, 403].into_iter().flat_map(|status| {
        [Value::Null, foreign.clone(), own.clone(), json!("<html>no such page</html>")].map(|body| (status, body))
    }) {
        account.fake.tell_of_operations(Some((status, body.clone())));
        let why = format!("{status} {body}");
        assert_eq!(provider.attach(&id), Ok(Change::Changed), "{why}");
        account.pass(Duration::from_secs(2));
        assert_eq!(provider.describe(&id).unwrap().state, VolumeState::Attaching, "{why}");
        account.reaches(&provider, &id, VolumeState::Attached);
        provider.detach(&id).unwrap();
        account.pass(Duration::from_secs(2));
        assert_eq!(provider.describe(&id).unwrap().state, VolumeState::Detaching, "{why}");
        account.reaches(&provider, &id, VolumeState::Available);
        // What neither the disk nor the machine shows goes on for some minutes, and then was in vain.
        account.fake.fail_operation("disks.delete", "InternalOperationError", "Internal error");
        assert_eq!(provider.delete(&id), Ok(Change::Changed), "{why}");
        account.pass(Duration::from_secs(10));
        assert_eq!(provider.describe(&id).unwrap().state, VolumeState::Deleting, "{why}");
        account.pass(LONG);
        assert_eq!(provider.describe(&id).unwrap().state, VolumeState::Available, "{why}");
    }
    assert_eq!(provider.delete(&id), Ok(Change::Changed));
    poll(&account, &provider, &id, None);
}

#[test]
fn an_operation_of_which_only_errors_are_told_holds_no_disk() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.made(&provider, "a");
    let error = json!({ "error": { "code": "InternalServerError", "message": "Internal error" } });
    let page = json!("<html>we are working on it</html>");
    let told = [500, 503, 400, 429, 302].map(|status| (status, error.clone()));
    let others = [(200, page.clone()), (302, page.clone()), (502, page), (500, Value::Null), (200, json!([]))];
    for (status, body) in told.into_iter().chain(others) {
        account.fake.tell_of_operations(Some((status, body.clone())));
        let why = format!("{status} {body}");
        // What is done shows at once, unless fewer calls are wanted.
        let wait = || account.pass(if status == 429 { LONG } else { Duration::from_secs(10) });
        assert_eq!(provider.attach(&id), Ok(Change::Changed), "{why}");
        wait();
        assert_eq!(provider.describe(&id).map(|seen| seen.state), Ok(VolumeState::Attached), "{why}");
        assert_eq!(provider.detach(&id), Ok(Change::Changed), "{why}");
        wait();
        assert_eq!(provider.describe(&id).map(|seen| seen.state), Ok(VolumeState::Available), "{why}");
        // What is not counts as on the way for some minutes, and then was in vain.
        account.fake.fail_operation("disks.delete", "InternalOperationError", "Internal error");
        assert_eq!(provider.delete(&id), Ok(Change::Changed), "{why}");
        account.pass(Duration::from_secs(10));
        match provider.describe(&id) {
            Ok(seen) => assert_eq!(seen.state, VolumeState::Deleting, "{why}"),
            Err(ProviderError::Transient(_) | ProviderError::Throttled { .. }) => {}
            told => panic!("{why} {told:?}"),
        }
        account.pass(LONG);
        assert_eq!(provider.describe(&id).map(|seen| seen.state), Ok(VolumeState::Available), "{why}");
    }
    assert_eq!(provider.delete(&id), Ok(Change::Changed));
    account.pass(Duration::from_secs(10));
    assert_eq!(provider.describe(&id), Err(ProviderError::NotFound(id)));
    assert_eq!(account.fake.disks(), 0);
}

#[test]
fn an_operation_that_is_told_to_go_on_for_ever_ends_with_its_change() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    for (status, body) in
        [(202, Value::Null), (200, json!({ "status": "InProgress" })), (200, json!({ "status": "x" }))]
    {
        let id = account.made(&provider, "a");
        account.fake.tell_of_operations(Some((status, body.clone())));
        // The disk itself tells.
        for (change, on_the_way, after) in [
            (Transition::Attach, VolumeState::Attaching, VolumeState::Attached),
            (Transition::Detach, VolumeState::Detaching, VolumeState::Available),
        ] {
            assert_eq!(provider.change_state(&id, change), Ok(Change::Changed));
            assert_eq!(provider.describe(&id).unwrap().state, on_the_way, "{body}");
            account.pass(Duration::from_secs(100));
            assert_eq!(provider.describe(&id).unwrap().state, after, "{body}");
        }
        assert_eq!(provider.delete(&id), Ok(Change::Changed));
        account.pass(LONG);
        assert_eq!(provider.describe(&id), Err(ProviderError::NotFound(id)), "{body}");
        account.fake.tell_of_operations(None);
    }
    // One that takes longer than that goes on.
    account.fake.set(|settings| settings.attach = 3 * LONG);
    let id = account.made(&provider, "a");
    assert_eq!(provider.attach(&id), Ok(Change::Changed));
    for _ in 0..2 {
        account.pass(LONG);
        assert_eq!(provider.describe(&id).unwrap().state, VolumeState::Attaching);
    }
    account.reaches(&provider, &id, VolumeState::Attached);
}

#[test]
fn what_failed_and_was_made_all_the_same_is_there() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.made(&provider, "a");
    let error = json!({ "code": "InternalOperationError", "message": "Internal error" });
    account.fake.tell_of_operations(Some((200, json!({ "status": "Failed", "error": error }))));
    provider.attach(&id).unwrap();
    account.pass(Duration::from_secs(10));
    assert_eq!(provider.describe(&id).unwrap().state, VolumeState::Attached);
    provider.detach(&id).unwrap();
    account.pass(Duration::from_secs(10));
    assert_eq!(provider.describe(&id).unwrap().state, VolumeState::Available);
    provider.grow(&id, Bytes::from_gib(20)).unwrap();
    account.pass(Duration::from_secs(10));
    assert_eq!(provider.describe(&id).unwrap().size, Bytes::from_gib(20));
    // A disk of which a change has failed is none that could not be made: it may hold data.
    account.fake.spoil(&id.0);
    for provider in [&provider, &account.open()] {
        assert_eq!(provider.describe(&id).unwrap().state, VolumeState::Available);
        assert_eq!(listed(provider, &id), VolumeState::Available);
    }
    account.fake.tell_of_operations(None);
    assert_eq!(provider.attach(&id), Ok(Change::Changed));
    account.reaches(&provider, &id, VolumeState::Attached);
}

#[test]
fn the_machine_is_read_again_before_a_disk_takes_a_unit() {
    let account = Account::new(Settings { attach: Duration::ZERO, ..Settings::default() });
    let (one, other) = (account.open(), account.open());
    let (first, second) = (account.made(&one, "a"), account.made(&one, "a"));
    // The look of the one is a moment old.
    assert_eq!(one.describe(&first).unwrap().state, VolumeState::Available);
    assert_eq!(other.attach(&second), Ok(Change::Changed));
    assert_eq!(account.fake.attached()[&second.0], 0);
    assert_eq!(one.attach(&first), Ok(Change::Changed));
    account.reaches(&one, &first, VolumeState::Attached);
    assert_eq!(account.fake.attached().into_values().collect::<BTreeSet<u32>>(), BTreeSet::from([0, 1]));
}

#[test]
fn changes_of_the_machine_from_several_threads_are_all_carried_out_and_none_twice() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let made: Vec<VolumeId> = (0..6).map(|_| account.made(&provider, "a")).collect();
    account.fake.take_sent();
    std::thread::scope(|scope| {
        for id in &made {
            let provider = &provider;
            scope.spawn(move || assert_eq!(provider.attach(id), Ok(Change::Changed)));
        }
    });
    for id in &made {
        account.reaches(&provider, id, VolumeState::Attached);
    }
    let units: BTreeSet<u32> = account.fake.attached().into_values().collect();
    assert_eq!(units.len(), made.len());
    let sent = account.fake.take_sent().iter().filter(|sent| sent.call == MACHINE).count();
    assert_eq!(sent, made.len(), "each is asked for once");
}

#[test]
fn a_change_that_waits_for_its_turn_ends_with_its_disk() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let (first, second) = (account.made(&provider, "a"), account.made(&provider, "a"));
    account.fake.take_sent();
    provider.attach(&first).unwrap();
    provider.attach(&second).unwrap();
    assert_eq!(account.open().delete(&second), Ok(Change::Changed));
    account.pass(Duration::from_secs(10));
    let gone = ProviderError::NotFound(second.clone());
    assert_eq!(provider.describe(&second), Err(gone.clone()));
    assert_eq!(provider.attach(&second), Err(gone));
    assert_eq!(provider.delete(&second), Ok(Change::Identity));
    account.reaches(&provider, &first, VolumeState::Attached);
    let changes = account.fake.take_sent().into_iter().filter(|sent| sent.call == MACHINE).count();
    assert_eq!(changes, 1);
}

#[test]
fn an_attach_that_waits_is_never_asked_for_by_the_detach_that_takes_it_back() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let (first, second) = (account.made(&provider, "a"), account.made(&provider, "a"));
    account.fake.take_sent();
    provider.attach(&first).unwrap();
    assert_eq!(provider.attach(&second), Ok(Change::Changed));
    // The machine could be changed now, and what was told of the disk is old.
    account.pass(Duration::from_secs(10));
    assert_eq!(provider.detach(&second), Ok(Change::Changed));
    assert_eq!(provider.describe(&second).unwrap().state, VolumeState::Available);
    assert_eq!(provider.delete(&second), Ok(Change::Changed));
    let changes = account.fake.take_sent().into_iter().filter(|sent| sent.call == MACHINE).count();
    assert_eq!(changes, 1, "the first one's");
}

#[test]
fn an_attach_that_may_have_been_sent_is_not_taken_back_as_if_it_had_not() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let (first, second) = (account.made(&provider, "a"), account.made(&provider, "a"));
    provider.attach(&first).unwrap();
    assert_eq!(provider.attach(&second), Ok(Change::Changed));
    account.pass(Duration::from_secs(10));
    account.fake.faults(|faults| faults.scripted.push_back((MACHINE, Fault::AnswerLost)));
    assert!(matches!(provider.describe(&second), Err(ProviderError::Transient(_))));
    assert_eq!(provider.detach(&second), Ok(Change::Changed));
    account.reaches(&provider, &second, VolumeState::Available);
    account.pass(Duration::from_secs(10));
    assert_eq!(account.fake.attached().into_keys().collect::<Vec<_>>(), [first.0]);
    assert_eq!(account.open().describe(&second).unwrap().state, VolumeState::Available);
}

#[test]
fn a_tag_of_which_the_operation_cannot_be_read_is_set_when_it_is_read() {
    let account = Account::new(Settings::default());
    let provider = account.open();
    let id = account.made(&provider, "a");
    account.fake.deny("diskOperations.get", true);
    account.fake.set_tag_time(Duration::ZERO);
    assert_eq!(provider.set_tag(&id, tag::DIRTY_EPOCH, Some("e")), Ok(Change::Changed));
    assert_eq!(account.fake.tags(&id.0)[tag::DIRTY_EPOCH], "e");
    account.fake.set_tag_time(Duration::from_secs(20));
    account.fake.take_sent();
    match provider.set_tag(&id, tag::DIRTY_EPOCH, None) {
        Err(ProviderError::Transient(text)) => assert!(text.contains("is asked for again"), "{text}"),
        answer => panic!("{answer:?}"),
    }
    let sent = account.fake.take_sent().len();
    assert!(sent <= 30, "it looks with pauses: {sent}");
}
