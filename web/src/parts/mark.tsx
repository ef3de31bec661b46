export function Mark() {
  return (
    <svg class="mark" viewBox="0 0 32 32" width="22" height="22" aria-hidden="true">
      <rect width="32" height="32" rx="7" />
      <path d="M7 8h4v16H7zM14 13h4v11h-4zM21 8h4v16h-4zM7 14h18v3.4H7z" />
    </svg>
  );
}
