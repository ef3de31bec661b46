export { KeyStore } from './key-store.ts';
export type { ApiKey } from './keys.ts';
export { dayOf, type Ledger, openLedger } from './ledger.ts';
export { openLedgerReader } from './reader.ts';
export type { RequestRecord, SessionFacts } from './record.ts';
export { addUsage, type UsageDimension, type UsageRow, usageDimensions } from './usage.ts';
