export { filesystemOf, filesystemOfMagic } from './filesystem.ts';
export type { ApiKey } from './keys.ts';
export { type Ledger, openLedger } from './ledger.ts';
export { openLedgerReader } from './reader.ts';
export type { RequestRecord, SessionFacts } from './record.ts';
export { type UsageDimension, type UsageRow, usageDimensions } from './usage.ts';
