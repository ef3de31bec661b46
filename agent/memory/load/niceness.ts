/**
 * Niceness of loading threads. They may share cores with threads that compute and meet at barriers: whoever decodes
 * goes first. Lower: loads go faster beside decoding; higher: decoding is disturbed less.
 */
export const load_niceness = 5;
