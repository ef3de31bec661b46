/** What the rows of a choice of an answer are called where they go. @param kv as in `MovedAnswer` */
export function arrivalName(kv: string, choice: number): string {
  return `${kv}.${choice}`;
}
