export { readJobRecords } from './jobs/job-records.ts';
export { type JobUsageQuery, joinedUsageDimensions, joinJobs } from './jobs/job-usage.ts';
export { type KeyChange, type KeyFinder, KeyIndex } from './key-index.ts';
export { KeyStore } from './key-store.ts';
export { type ApiKey, generateKeyId, limitsKeyOf } from './keys.ts';
export { type Ledger, openLedger } from './ledger.ts';
export { openLedgerReader } from './reader.ts';
export type { RequestRecord, SessionFacts } from './record.ts';
export { RecordDecoder, RecordEncoder } from './record-lines.ts';
export { dayOf } from './spent-sums.ts';
export { askSql } from './sql.ts';
export { analyzeTrace, type ModelAnalysis, type TraceAnalysis } from './trace/analysis.ts';
export { exportTrace } from './trace/export.ts';

export { csvField, jobUsageText, usageText } from './usage-text.ts';
