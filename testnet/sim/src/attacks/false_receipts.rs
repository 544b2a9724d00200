//! Creates the receipts that a lying provider could write: for each field, the honest receipt with
//! a false value in that field. The search for attacks then lets an honest buyer accept or refuse
//! each.
//!
//! The table destructures a receipt without a rest pattern, so a new field will not compile until
//! its row shows how a provider would falsify it.

use souk_market::{
    AccountKey, Class, ContentId, Credits, DeviceMicros, Dtype, JobId, LeaseId, MarketId, Millis,
    Name, Permille, Price, ReceiptBody, TokenTerms, TokenUsage,
};

/// A receipt with one false field.
pub struct FalseReceipt {
    /// The field's name.
    pub field: &'static str,
    /// The false receipt.
    pub body: ReceiptBody,
}

macro_rules! false_receipts {
    ($honest:expr; $($field:ident => $value:expr;)+) => {{
        let honest: &ReceiptBody = $honest;
        // Names every field and no other.
        let ReceiptBody { $($field: _),+ } = honest;
        vec![$({
            let mut body = honest.clone();
            body.$field = $value;
            FalseReceipt { field: stringify!($field), body }
        }),+]
    }};
}

/// The idle time that a false receipt invents. It costs less at the price of idle time than a souk
/// buyer adds to the time that it saw.
const IDLE_INVENTED: DeviceMicros = DeviceMicros(5_000_000);

/// Returns all false receipts of a lease that can have used at most `possible`.
pub fn make_false_receipts(honest: &ReceiptBody, possible: DeviceMicros) -> Vec<FalseReceipt> {
    let account = AccountKey([9; 32]);
    let content = ContentId([9; 32]);
    let class = Class {
        emulated: !honest.class.emulated,
        ..honest.class
    };
    // A device counts no tokens.
    let invented = TokenUsage {
        terms: TokenTerms::USUAL,
        input: 1 << 40,
        cached: 0,
        output: 0,
        held: possible,
    };
    let mut receipts = false_receipts! { honest;
        market => MarketId([9; 32]);
        lease => LeaseId(honest.lease.0 + 1);
        job => JobId([9; 32]);
        buyer => account;
        provider => account;
        graph => content;
        inputs => vec![content];
        outputs => vec![content];
        class => class;
        model => Name::try_from("another").expect("a short name");
        emulated => !honest.emulated;
        dtype => Dtype::F64;
        declared_mega_ops => honest.declared_mega_ops / 2;
        delivered_mega_ops => honest.delivered_mega_ops * 2 + 1;
        usage => possible;
        metered => Some(invented);
        idle => IDLE_INVENTED;
        idle_part => Permille(1_000);
        price => Price(honest.price.0 * 2);
        amount => Credits(honest.amount.0 * 2 + 1);
        bytes_in => honest.bytes_in + 1;
        bytes_out => honest.bytes_out + 1;
        started => Millis(0);
        finished => honest.finished.saturating_add(Millis(1));
    };
    // If a liar falsifies a factor of the sum, it adapts the sum.
    for forged in &mut receipts {
        if forged.field != "amount" {
            let due = ReceiptBody::amount_due(forged.body.price, forged.body.billable_usage());
            forged.body.amount = due.unwrap_or(forged.body.amount);
        }
    }
    receipts
}
